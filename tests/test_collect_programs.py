"""Real programs, with real torch on the CPU, run under collect/."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import polars as pl
import pytest
from collecting import (
    COLLECT,
    LOOP,
    QUICK,
    WITH_TORCH,
    Run,
    collect,
    collect_program,
)

from traceq.inputs.load_trace import load

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = WITH_TORCH

SCRIPT = """
import sys
print("torch" in sys.modules, file=sys.stderr)
import argparse, warnings
import agent, launcher, shared
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--token")
options = parser.parse_args()
LOOP
warnings.warn("look here")
for _ in range(options.steps):
    step()
print("MODULES", agent.MINE, launcher.MINE, shared.MINE)
print("OURS ON THE PATH", [path for path in sys.path if path.startswith("COLLECT")])
print("STEPS", options.steps)
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A script with argparse that lives beside modules called as ours."""
    folder = tmp_path_factory.mktemp("in a plain folder")
    for name in ("agent", "launcher", "shared"):
        (folder / f"{name}.py").write_text("MINE = True\n")
    (folder / "train.py").write_text(
        SCRIPT.replace("LOOP", LOOP).replace("COLLECT", str(COLLECT))
    )
    command = [sys.executable, "train.py", "--steps", "40", "--token", "hush"]
    return collect(folder, command, (*QUICK, "--label", "seq_len=512"))


@pytest.mark.real
def test_a_loop_is_recorded_and_keeps_its_status(plain: Run) -> None:
    assert plain.status == 0
    assert plain.rank["state"] == "done"
    assert plain.facts["exit"]["status"] == 0


@pytest.mark.real
def test_the_folder_holds_what_the_manifest_names(plain: Run) -> None:
    names = {"run.json", "stderr.log", "rank-0.json", "rank-0.log"}
    assert plain.files == {*names, "rank-0.trace.json.gz", "sources"}


@pytest.mark.real
def test_the_trace_holds_the_steps_asked_for_and_they_are_whole(plain: Run) -> None:
    names = [annotation["name"] for annotation in plain.annotations()]
    one_step = ["Optimizer.zero_grad#SGD.zero_grad", "Optimizer.step#SGD.step"]
    first, second = plain.step_names()
    assert names == [first, *one_step, second, *one_step]


@pytest.mark.real
def test_no_annotation_of_the_optimizer_is_cut_by_a_step(plain: Run) -> None:
    notes = plain.annotations()
    steps = [note for note in notes if note["name"].startswith("ProfilerStep")]
    inner = [note for note in notes if note["name"].startswith("Optimizer.step")]
    ends = [item["ts"] + item["dur"] for item in steps]
    for step, end, optimizer in zip(steps, ends, inner, strict=True):
        assert step["ts"] <= optimizer["ts"]
        assert optimizer["ts"] + optimizer["dur"] <= end
        assert "finished" not in optimizer["args"]


@pytest.mark.real
def test_the_trace_has_shapes_stacks_and_modules(plain: Run) -> None:
    events = plain.events()
    assert any("Input Dims" in event.get("args", {}) for event in events)
    names = {event["name"] for event in events if event.get("cat") == "python_function"}
    assert "nn.Module: Sequential_0" in names
    assert any(name.startswith("train.py(") for name in names)


@pytest.mark.real
def test_steps_are_those_of_the_optimizer(plain: Run) -> None:
    steps = plain.rank["steps"]
    assert (steps["by"], steps["of"]) == ("optimizer", "SGD")
    assert steps["seen"] == 2 + 3 + (1 + 1) + 1 + (1 + 2)


@pytest.mark.real
def test_the_true_step_time_has_its_spread(plain: Run) -> None:
    result = plain.rank["step_time"]
    assert result["steps"] == 3
    assert result["clock"] == "host"
    order = [
        result[key] for key in ("min_ms", "p10_ms", "median_ms", "p90_ms", "max_ms")
    ]
    assert order == sorted(order)
    assert result["min_ms"] > 0
    assert result["ms"] == pytest.approx(result["seconds"] * 1000 / 3, abs=0.1)


@pytest.mark.real
def test_without_cuda_it_says_why_there_is_no_memory_history(plain: Run) -> None:
    assert plain.rank["device"] == "cpu"
    assert "does not use CUDA" in plain.why_missing("memory")
    assert "does not use CUDA" in plain.err


@pytest.mark.real
def test_arguments_and_stdout_pass_through(plain: Run) -> None:
    lines = plain.out.splitlines()
    assert lines == ["MODULES True True True", "OURS ON THE PATH []", "STEPS 40"]


@pytest.mark.real
def test_torch_is_not_imported_before_the_program_does(plain: Run) -> None:
    assert (plain.folder / "stderr.log").read_text().splitlines()[0] == "False"


@pytest.mark.real
def test_stderr_is_shown_and_kept(plain: Run) -> None:
    text = (plain.folder / "stderr.log").read_text()
    assert "UserWarning: look here" in text
    assert "UserWarning: look here" in plain.err
    assert "traceq:" not in text


@pytest.mark.real
def test_warnings_are_kept_with_their_rank(plain: Run) -> None:
    assert "UserWarning: look here" in (plain.folder / "rank-0.log").read_text()
    assert plain.rank["log"] == {
        "file": "rank-0.log",
        "warnings": 1,
        "truncated": False,
    }


@pytest.mark.real
def test_labels_and_the_command_without_its_secret_are_kept(plain: Run) -> None:
    assert plain.facts["labels"] == {"seq_len": "512"}
    assert plain.facts["command"][-4:] == ["--steps", "40", "--token", "[redacted]"]
    assert "hush" not in (plain.folder / "run.json").read_text()


@pytest.mark.real
def test_the_end_says_where_and_what_next(plain: Run) -> None:
    last = plain.err.splitlines()[-2:]
    assert last[0].startswith(f"traceq: recorded to {plain.folder} (")
    assert last[1] == f"traceq:   traceq lint '{plain.folder}'"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A package run with -m, beside its own sitecustomize, that exits with 3."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "sitecustomize.py").write_text("import builtins\nbuiltins.MINE = 1\n")
    (folder / "trainer").mkdir()
    (folder / "trainer" / "__init__.py").touch()
    (folder / "trainer" / "__main__.py").write_text(
        LOOP + "import sitecustomize, sys\nfor _ in range(20): step()\n"
        "print(__package__, MINE, sitecustomize.__file__)\nsys.exit(3)"
    )
    command = [sys.executable, "-m", "trainer"]
    return collect(folder, command, env={"PYTHONPATH": str(folder)})


def test_a_package_is_run_as_one(package: Run) -> None:
    assert package.out.split()[0] == "trainer"
    assert package.rank["state"] == "done"


def test_the_programs_own_sitecustomize_runs(package: Run) -> None:
    place = package.folder.parents[1] / "sitecustomize.py"
    assert package.out.split()[1:] == ["1", str(place)]


def test_an_exit_status_passes_through(package: Run) -> None:
    assert package.status == 3
    assert package.facts["exit"]["status"] == 3


@pytest.mark.parametrize("flag", ["-I", "-E", "-S", "-sE"])
def test_an_isolated_python_cannot_be_recorded(tmp_path: Path, flag: str) -> None:
    run = collect(tmp_path, [sys.executable, flag, "-c", "print('ran')"])
    assert (run.status, run.out) == (2, "ran\n")
    assert f"{flag} ignores PYTHONPATH" in run.err
    assert run.facts["ranks"] == []


def test_a_program_without_torch_is_told_so(tmp_path: Path) -> None:
    run = collect(tmp_path, [sys.executable, "-c", "print('ran')"])
    assert (run.status, run.out) == (2, "ran\n")
    assert "nothing was recorded: the program never imported torch" in run.err


def test_a_failure_is_not_hidden_by_ours(tmp_path: Path) -> None:
    run = collect(tmp_path, [sys.executable, "-c", "raise SystemExit(5)"])
    assert run.status == 5


HELD_BY_MAIN = (
    LOOP
    + """
def main():
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).sum()
        loss.backward()
        optimizer.step()
main()
"""
)


def test_a_function_that_holds_the_loop_has_the_line_at_which_it_begins(
    tmp_path: Path,
) -> None:
    run = collect_program(tmp_path, HELD_BY_MAIN)
    begins = HELD_BY_MAIN.splitlines().index("def main():") + 1

    ops = load(run.folder).ops.filter(pl.col("name").cast(pl.String) == "aten::randn")
    places = ops.select(pl.col("function").cast(pl.String), "line").unique().rows()
    assert places == [("main", begins)]
    alone = load(run.folder / "rank-0.trace.json.gz").ops["line"]
    assert begins not in alone
