"""Programs are run without a GPU and held to the CPU part of their fixture."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import polars as pl
import pytest
from collecting import WITH_TORCH
from command import Answer, traceq
from conftest import ROOT
from linting import bundled_rules

from traceq.analysis.patterns.host_calls import SCHEMA
from traceq.check.budgets import Budget, read_budgets
from traceq.check.cpu import CpuPart, cpu_budgets, read_cpu_part
from traceq.check.cpu_changes import cpu_differences
from traceq.check.fixture import read_fixture
from traceq.check.program import ProgramError, command_of
from traceq.check.run import check_run
from traceq.inputs.load_trace import load
from traceq.linter.config import Config
from traceq.model.recording import Recording

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.check.check import FixtureResult

PROGRAM = """\
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def mix(self, x):
        return self.down(torch.relu(self.up(x)))

    def forward(self, x):
        return x + self.mix(x)


@torch.compile(backend="eager")
def loss_of(out, target):
    error = out - target
    return (error * error).mean()


model = nn.Sequential(Block(), Block()).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step(i):
    batch = torch.randn(2, 4, 8, device=device)
    loss = loss_of(model(batch), batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


for i in range(60):
    step(i)
"""


EMPTY = '{"version":1,"torch":"","stacks":true,"calls":[]}'
CLEAN = ROOT / "fixtures" / "twins" / "copies_fixed"
SICK = ROOT / "fixtures" / "copies"


def line(text: str) -> int:
    """Return the line of the program that has a text."""
    return PROGRAM[: PROGRAM.index(text)].count("\n") + 1


def red(answer: Answer, *words: str) -> bool:
    text = " ".join(answer.out.split())
    assert all(word in text for word in words), answer.out
    return answer.status == 1


class Project:
    """A folder with a program, and a fixture that knows how to run it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fixture = folder / "fixtures" / "train"

    def write(self, program: str, command: str = "") -> None:
        self.fixture.mkdir(parents=True, exist_ok=True)
        (self.folder / "train.py").write_text(program)
        words = command or f"{sys.executable} train.py"
        (self.fixture / "origin.toml").write_text(
            f'program = "A small model."\ncommand = "traceq collect -- {words}"\n'
        )

    def with_change(self, old: str, new: str) -> Answer:
        """Run the program with a change."""
        assert old in PROGRAM
        self.write(PROGRAM.replace(old, new, 1))
        return self.check()

    def check(self, *options: str) -> Answer:
        return traceq("check", "--run", self.fixture, *options)


@pytest.fixture(autouse=True)
def _elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    uses_base = "project" in request.fixturenames
    monkeypatch.chdir(
        request.getfixturevalue("project").folder if uses_base else tmp_path
    )


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fixture of the unchanged program, as --update wrote it."""
    project = Project(tmp_path_factory.mktemp("base"))
    project.write(PROGRAM)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CI", raising=False)
        patch.chdir(project.folder)
        answer = project.check("--update")
    assert answer.status == 0, answer.err
    assert "cpu.json, traceq.toml written" in answer.out
    return project.fixture


@pytest.fixture
def project(tmp_path: Path, expected: Path) -> Project:
    shutil.copytree(expected, tmp_path / "fixtures" / "train")
    return Project(tmp_path)


def checked(folder: Path, expected: Path, *changes: tuple[str, str]) -> Answer:
    """Run the program with some changes against what is expected of the unchanged."""
    project = Project(folder)
    shutil.copytree(expected, project.fixture)
    # Of these a run without a GPU knows nothing.
    limits = project.fixture / "traceq.toml"
    text = limits.read_text()
    limits.write_text(
        text.replace("[budgets]\n", "[budgets]\nlaunches = 5\nsyncs = 0\n")
    )
    program = PROGRAM
    for old, new in changes:
        assert old in program
        program = program.replace(old, new, 1)
    project.write(program)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CI", raising=False)
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.chdir(folder)
        return project.check()


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory, expected: Path) -> Answer:
    """The check of a second run of the program."""
    return checked(tmp_path_factory.mktemp("same"), expected)


# Lines stay where they are.
ADDED_OPS = 30
WORSE = (
    ("    loss.backward()\n", "    loss.backward(); print(loss.item())\n"),
    (
        "    error = out - target\n",
        "    error = out - target; torch._dynamo.graph_break()\n",
    ),
    ("torch.relu(self.up(x))", "torch.relu(self.up(x).double().float())"),
)
OTHER = (
    ("torch.randn(2, 4,", "torch.randn(2, 4 + i % 2,"),
    (
        "self.down(torch.relu(self.up(x)))",
        "self.down(torch.relu(self.up(x).double()).float())",
    ),
    (
        "    optimizer.zero_grad()\n",
        f"    optimizer.zero_grad(); [batch.neg() for _ in range({ADDED_OPS})]\n",
    ),
)


@pytest.fixture(scope="module")
def worse(tmp_path_factory: pytest.TempPathFactory, expected: Path) -> Answer:
    """The check of a program that waits, casts and breaks its graph."""
    return checked(tmp_path_factory.mktemp("worse"), expected, *WORSE)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory, expected: Path) -> Answer:
    """The check of a program that recompiles, with more ops and another dtype."""
    return checked(tmp_path_factory.mktemp("other"), expected, *OTHER)


@pytest.mark.usefixtures("_elsewhere")
class TestWithTorch:
    """Each of these looks at a run of a program that imports torch."""

    pytestmark: ClassVar = [*WITH_TORCH, pytest.mark.slow]

    def test_two_runs_of_one_program_are_the_same(self, same: Answer) -> None:
        assert same.status == 0, same.out
        assert "train: 8 CPU budgets kept\n" in same.out
        assert same.out.endswith(
            "ran 1 program without a GPU\n1 fixture, all as expected\n"
        )

    def test_what_was_not_compared_is_said(self, same: Answer) -> None:
        assert "(skipped) 2 GPU budgets not compared: this run had no GPU" in same.out

    def test_an_added_item_is_red(self, worse: Answer) -> None:
        assert red(worse, "CPU syncs 1, the budget is 0", "1 more aten::item a step")
        assert f"at train.py:{line('loss.backward()')} step" in worse.out

    def test_an_added_cast_is_red(self, worse: Answer) -> None:
        assert red(worse, "CPU casts 8, the budget is 0", "4 more float32 to float64")
        assert f"at train.py:{line('torch.relu')} mix" in worse.out

    def test_a_graph_break_is_red(self, worse: Answer) -> None:
        assert red(worse, "CPU graph-breaks 1, the budget is 0")
        at = f"at train.py:{line('error = out')} loss_of"
        assert f"1 more graph break {at}" in worse.out

    def test_a_recompilation_is_red(self, other: Answer) -> None:
        words = "1 more recompilation in loss_of (train.py:"
        assert red(other, "CPU recompiles 1, the budget is 0", words, "size mismatch")

    def test_a_changed_dtype_is_red(self, other: Answer) -> None:
        where = f"dtype other dtypes on the CPU at train.py:{line('torch.relu')} mix:"
        assert red(other, where, "aten::relu takes float64 instead of float32")

    def test_more_ops_than_the_tolerance_are_red(
        self, other: Answer, expected: Path
    ) -> None:
        before = read_cpu_part(expected / "cpu.json").numbers["ops"]
        words = f", the budget is {before:g} ± 2%"
        at = f"at train.py:{line('optimizer.zero_grad()')} "
        assert red(other, "CPU ops ", words, f"{ADDED_OPS} more aten::neg a step {at}")

    def test_a_program_that_fails_exits_2_with_its_words(
        self, project: Project
    ) -> None:
        answer = project.with_change("import torch\n", "1 / 0\n")

        assert answer.status == 2
        assert "train.py failed with exit status 1" in answer.out
        assert "| ZeroDivisionError: division by zero" in answer.err

    def test_a_program_that_needs_cuda_is_told_how_not_to(
        self, project: Project
    ) -> None:
        answer = project.with_change(
            '"cuda" if torch.cuda.is_available() else "cpu"', '"cuda"'
        )

        assert answer.status == 2
        text = " ".join(answer.out.split())  # wrapped, wherever the path ends
        assert "needs CUDA, which this machine does not have" in text
        assert "torch.cuda.is_available()" in answer.out

    def test_a_program_with_too_few_steps_exits_2_and_says_so(
        self, project: Project
    ) -> None:
        answer = project.with_change("range(60)", "range(2)")

        assert answer.status == 2
        assert "the program ended after 2 steps" in " ".join(answer.out.split())


def test_a_fixture_without_a_cpu_part_is_not_green(tmp_path: Path) -> None:
    """What a program is compared with is there before it is run for minutes."""
    project = Project(tmp_path)
    project.write("import time; time.sleep(60)")

    answer = project.check()

    assert answer.status == 2
    assert "it has no cpu.json" in answer.out


def test_a_fixture_without_a_command_is_not_green(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("")
    (project.fixture / "origin.toml").write_text('program = "One."\n')

    answer = project.check()

    assert answer.status == 2
    assert "not run: origin.toml has no command" in answer.out
    assert "nothing was compared" in answer.err


def test_a_fixture_with_only_a_cpu_part_needs_run(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("")
    (project.fixture / "cpu.json").write_text("{}")

    answer = traceq("check", project.fixture)

    assert answer.status == 2
    assert "it has only cpu.json, which traceq check --run compares" in answer.out


@pytest.mark.slow
def test_a_program_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("import time; time.sleep(60)")
    (project.fixture / "cpu.json").write_text(EMPTY)

    answer = project.check("--timeout", "2")

    assert answer.status == 2
    assert "was stopped after 2 s (--timeout)" in answer.out


def test_an_earlier_run_is_kept(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("print('hello')")
    (project.fixture / "cpu.json").write_text(EMPTY)

    for _ in range(2):
        answer = project.check("--runs", "kept")
        assert answer.status == 2
        assert "never imported torch" in " ".join(answer.out.split())

    names = {file.name for file in (tmp_path / "kept" / "train").iterdir()}
    assert {"run", "run-2"} < names
    assert (tmp_path / "kept/train/run-2.output.txt").read_text().startswith("hello\n")


# With a GPU: a run is as if it had been given with --against.


def run_on_gpu(fixture: Path, trace: Path, *, update: bool = False) -> FixtureResult:
    new = Recording(str(trace), load(trace))
    return check_run(fixture, new, bundled_rules(), Config(), update=update)


def texts(result: FixtureResult) -> str:
    return "\n".join(difference.text for difference in result.differences)


def test_a_run_on_a_gpu_is_compared_with_findings_and_budgets(tmp_path: Path) -> None:
    fixture = tmp_path / "x"
    shutil.copytree(CLEAN, fixture)
    (fixture / "cpu.json").write_text(EMPTY)

    same = run_on_gpu(fixture, CLEAN / "trace.json.gz")
    worse = run_on_gpu(fixture, SICK / "trace.json.gz")

    assert (same.ran_on, same.compared, same.fails) == ("cuda", True, False)
    assert "cpu.json is not compared: the program used the GPU" in texts(same)
    assert worse.fails
    assert "launches 114, the budget is 57" in texts(worse)


def test_a_run_on_a_gpu_does_not_write_the_cpu_part(tmp_path: Path) -> None:
    shutil.copytree(CLEAN, tmp_path / "x")

    result = run_on_gpu(tmp_path / "x", CLEAN / "trace.json.gz", update=True)

    assert result.unable
    assert "add --cpu" in texts(result)
    assert not (tmp_path / "x" / "cpu.json").exists()


def test_a_run_on_a_gpu_with_nothing_expected_is_not_green(tmp_path: Path) -> None:
    shutil.copytree(CLEAN, tmp_path / "x")
    (tmp_path / "x" / "findings.json").unlink()

    assert run_on_gpu(tmp_path / "x", CLEAN / "trace.json.gz").unable


# Commands.


def command(tmp_path: Path, said: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    (tmp_path / "origin.toml").write_text(said)
    result = command_of(read_fixture(tmp_path))
    assert result is not None
    return result.words, result.options


def test_a_command_may_have_options_of_collect(tmp_path: Path) -> None:
    said = 'command = "traceq collect --steps-by mark -- sh run.sh --lr 0.1"\n'

    assert command(tmp_path, said) == (
        ("sh", "run.sh", "--lr", "0.1"),
        ("--steps-by", "mark"),
    )


def test_a_command_may_be_a_list(tmp_path: Path) -> None:
    assert command(tmp_path, 'command = ["sh", "my run.sh"]\n')[0] == (
        "sh",
        "my run.sh",
    )


def test_a_command_with_words_left_out_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="is not whole: write all words"):
        command(tmp_path, 'command = "python train.py --data …"\n')


def test_a_command_runs_in_the_repository(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "examples").mkdir()
    fixture = tmp_path / "a" / "fixtures" / "x"
    fixture.mkdir(parents=True)
    (fixture / "origin.toml").write_text('command = "sh x.sh"\nfolder = "examples"\n')

    result = command_of(read_fixture(fixture))

    assert result is not None
    assert result.folder == tmp_path / "examples"


# What differs, drawn.


def test_lines_are_named_if_all_calls_of_a_function_are_new() -> None:
    after = part(("sync", "aten::item", "", 2))
    calls = after.calls.with_columns(call_lines=pl.lit([4, 9]))
    after = replace(after, calls=calls)
    before = part(("sync", "aten::item", "", 1))

    assert differences(part(), after) == [
        "CPU syncs 2, the budget is 0: 2 more aten::item a step at a.py:4 f and 1 other"
        " line"
    ]
    assert differences(before, after) == [
        "CPU syncs 2, the budget is 1: 1 more aten::item a step in f (a.py:3), at one"
        " of the lines 4, 9"
    ]


def part(*rows: tuple[str, str, str, float]) -> CpuPart:
    calls = [
        {
            "kind": kind,
            "what": what,
            "dtypes": dtypes.split(),
            "file": "a.py",
            "function": "f",
            "line": 3,
            "call_lines": [],
            "count": count,
        }
        for kind, what, dtypes, count in rows
    ]
    return CpuPart("2.13", stacks=True, calls=pl.DataFrame(calls, schema=SCHEMA))


def differences(before: CpuPart, after: CpuPart, **limits: Budget) -> list[str]:
    wanted = {**cpu_budgets(before, None), **limits}
    return [
        ("" if cpu_difference.fails else "note: ") + cpu_difference.text
        for cpu_difference in cpu_differences(before, wanted, after)
    ]


def test_one_cast_in_place_of_another_is_more() -> None:
    before = part(("cast", "float32 to bfloat16", "", 2))
    after = part(("cast", "bfloat16 to float32", "", 2))

    assert differences(before, after) == [
        "CPU casts 2, the budget is 2: 2 more bfloat16 to float32 a step in f (a.py:3)"
    ]


def test_less_is_a_note() -> None:
    before, after = part(("sync", "aten::item", "", 2)), part()

    assert differences(before, after) == ["note: CPU syncs 0, the budget is 2"]


def test_ops_may_differ_by_the_tolerance() -> None:
    before = part(("op", "aten::mm", "float32", 100))

    assert differences(before, part(("op", "aten::mm", "float32", 102))) == []
    assert differences(before, part(("op", "aten::mm", "float32", 103))) != []


def test_a_budget_that_was_raised_by_hand_allows_more() -> None:
    before = part(("sync", "aten::item", "", 1))
    after = part(("sync", "aten::item", "", 1), ("sync", "aten::nonzero", "", 1))

    assert differences(before, after) != []
    assert differences(before, after, syncs=Budget(2)) == []


def test_an_op_that_moves_to_a_dtype_that_others_have_is_changed() -> None:
    before = part(("op", "aten::mm", "float32", 4), ("op", "aten::mm", "bfloat16", 4))
    after = part(("op", "aten::mm", "float32", 6), ("op", "aten::mm", "bfloat16", 2))

    assert differences(before, after) == [
        "other dtypes on the CPU in f (a.py:3): aten::mm takes float32 instead of"
        " bfloat16"
    ]


def test_an_op_that_is_new_has_no_other_dtype() -> None:
    before = part(("op", "aten::mm", "float32", 100))
    after = part(("op", "aten::mm", "float32", 100), ("op", "aten::neg", "int64", 1))

    assert differences(before, after) == []


def test_what_needs_stacks_is_not_compared_without() -> None:
    before = part()
    after = part(("sync", "Tensor.cpu()", "", 1))

    assert len(differences(before, after)) == 1
    assert differences(replace(before, stacks=False), after) == []


def test_budgets_of_the_cpu_are_written_and_read(tmp_path: Path) -> None:
    (tmp_path / "traceq.toml").write_text(
        "[budgets.cpu]\nops = { value = 5, tolerance = 0.5 }\nsyncs = 0\n"
    )

    assert read_budgets(tmp_path / "traceq.toml").cpu == {
        "ops": Budget(5, 0.5),
        "syncs": Budget(0),
    }
