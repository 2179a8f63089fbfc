"""Sweeps of real programs under `collect sweep`: rows, numbers, endings, resumption."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from collecting import COLLECT, WITH_TORCH, environment, module
from command import traceq

if TYPE_CHECKING:
    from pathlib import Path

# Two kinds of three sizes; the largest of one kind runs out of memory.
PROGRAM = """
import sys, time
import torch
import traceq
size, kind = int(sys.argv[1]), sys.argv[2]
model = torch.nn.Linear(size, size)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if (size, kind) == (32, "wide"):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB")
for step in range(9):
    optimizer.zero_grad()
    loss = model(torch.ones(2, size)).square().mean()
    loss.backward()
    optimizer.step()
    time.sleep(0.01)
    traceq.record(loss=loss, level=step, tokens=2 * size)
print(f"done: accuracy={size / 100}")
"""
GRID = ("--grid", "size=8,16,32", "--grid", "kind=narrow,wide")
QUICK = ("--times-only", "--warmup", "2", "--timed", "5", "--seed", "7")
OPTIONS = (*GRID, *QUICK, "--number", "accuracy=([0-9.]+)", "--peak-tflops", "1")
TORCH = [*WITH_TORCH, pytest.mark.slow]


def command(folder: Path, *options: str) -> list[str]:
    (folder / "bench.py").write_text(PROGRAM)
    run = [sys.executable, "bench.py", "{size}", "{kind}"]
    words = ["--out", "out", "--name", "sizes", *options, "--", *run]
    return [sys.executable, str(COLLECT), "sweep", *words]


def start(words: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words,
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # without a terminal
    )


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    files = sorted((folder / "out" / "sizes").glob("*/row.json"))
    return {file.parent.name: json.loads(file.read_text()) for file in files}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict[str, int]]:
    """Return a sweep that was interrupted in its third run, then resumed.

    With it come what the second part said, and when the first rows were written.
    """
    folder = tmp_path_factory.mktemp("swept")
    first = start(command(folder, *OPTIONS), folder)
    sweep = folder / "out" / "sizes"
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and first.poll() is None:
        begun = {file.parent.name for file in sweep.glob("*/run.json")}
        if len(rows(folder)) == 2 and begun - set(rows(folder)):
            break
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGINT)
    _, said = first.communicate(timeout=120)
    assert first.returncode == 130, said
    assert "--resume" in said
    written = {
        name: (sweep / name / "row.json").stat().st_mtime_ns for name in rows(folder)
    }
    resume = [sys.executable, str(COLLECT), "sweep", "--resume", "out/sizes"]
    second = start(resume, folder)
    _, said = second.communicate(timeout=500)
    assert second.returncode == 0, said
    return folder, said, written


@pytest.mark.usefixtures("swept")
class TestSweep:
    """One sweep of six configurations."""

    pytestmark = TORCH

    def test_an_interrupted_sweep_has_the_runs_that_had_ended(
        self, swept: tuple[Path, str, dict[str, int]]
    ) -> None:
        assert len(swept[2]) == 2

    def test_a_finished_run_is_never_run_again(
        self, swept: tuple[Path, str, dict[str, int]]
    ) -> None:
        folder, said, written = swept
        sweep = folder / "out" / "sizes"

        assert "2 of 6 runs have ended before" in said
        for name, at in written.items():
            assert (sweep / name / "row.json").stat().st_mtime_ns == at

    def test_every_configuration_is_a_row_with_its_labels(
        self, swept: tuple[Path, str, dict[str, int]]
    ) -> None:
        labels = [tuple(row["labels"].items()) for row in rows(swept[0]).values()]

        assert sorted(labels) == sorted(
            (("size", size), ("kind", kind))
            for size in ("8", "16", "32")
            for kind in ("narrow", "wide")
        )

    def test_a_run_out_of_memory_is_a_row_with_its_reason(
        self, swept: tuple[Path, str, dict[str, int]]
    ) -> None:
        row = rows(swept[0])["size=32-kind=wide-1"]

        assert row["status"] == "out of memory"
        assert "Tried to allocate 3.00 GiB" in row["reason"]
        assert row["step_time"] is None

    def test_step_times_have_mean_deviation_and_number(
        self, swept: tuple[Path, str, dict[str, int]]
    ) -> None:
        for row in rows(swept[0]).values():
            if row["status"] == "ok":
                timed = row["step_time"]
                laps = timed["laps_ms"]
                assert timed["n"] == len(laps) == 5
                assert timed["std_ms"] == pytest.approx(
                    statistics.stdev(laps), abs=1e-3
                )
                assert timed["mean_ms"] == pytest.approx(
                    statistics.fmean(laps), rel=0.01
                )
                assert timed["mean_ms"] > 10

    def test_the_programs_own_numbers_are_recorded(
        self, swept: tuple[Path, str, dict[str, int]]
    ) -> None:
        row = rows(swept[0])["size=16-kind=wide-1"]
        level = row["numbers"]["level"]

        assert (level["last"], level["n"]) == (8, 9)
        assert level["mean"] == pytest.approx(4)
        assert level["std"] == pytest.approx(statistics.stdev(range(9)))
        assert 0 < row["numbers"]["loss"]["last"] < row["numbers"]["loss"]["mean"]
        assert row["tokens"] == 32

    def test_a_number_in_the_output_is_parsed(
        self, swept: tuple[Path, str, dict[str, int]]
    ) -> None:
        row = rows(swept[0])["size=8-kind=narrow-1"]

        assert row["numbers"]["accuracy"]["last"] == 0.08

    def test_parameters_are_counted(
        self, swept: tuple[Path, str, dict[str, int]]
    ) -> None:
        assert rows(swept[0])["size=16-kind=wide-1"]["parameters"] == 16 * 16 + 16

    def test_a_cpu_has_no_peak_memory_and_says_so(
        self, swept: tuple[Path, str, dict[str, int]]
    ) -> None:
        peak = rows(swept[0])["size=8-kind=wide-1"]["peak_memory"]

        assert peak == {
            "allocated": None,
            "why": "the CPU has no allocator statistics",
        }

    def test_times_only_traces_nothing(
        self, swept: tuple[Path, str, dict[str, int]]
    ) -> None:
        sweep = swept[0] / "out" / "sizes"

        assert list(sweep.glob("*/*.trace.json.gz")) == []
        assert all(row["trace"] is None for row in rows(swept[0]).values())

    def test_the_order_is_random_and_recorded(
        self, swept: tuple[Path, str, dict[str, int]]
    ) -> None:
        facts = json.loads((swept[0] / "out" / "sizes" / "sweep.json").read_text())
        started = sorted(rows(swept[0]).values(), key=lambda one: one["started"])

        assert facts["seed"] == 7
        assert [entry["name"] for entry in started] == facts["order"]

    def test_the_report_has_the_numbers_of_the_rows(
        self, swept: tuple[Path, str, dict[str, int]]
    ) -> None:
        folder = swept[0]
        answer = traceq("sweep", "report", folder / "out" / "sizes", "--format", "json")
        report = json.loads(answer.out)
        of_rows = {
            tuple(item["labels"].values()): item for item in rows(folder).values()
        }

        assert len(report["configurations"]) == 6
        for configuration in report["configurations"]:
            row = of_rows[tuple(configuration["labels"].values())]
            if row["status"] != "ok":
                assert (configuration["status"], configuration["values"]) == (
                    "out of memory",
                    {},
                )
                continue
            step = configuration["values"]["step"]
            assert step["mean"] == pytest.approx(row["step_time"]["mean_ms"] * 1e6)
            assert step["std"] == pytest.approx(row["step_time"]["std_ms"] * 1e6)
            assert (step["n"], step["of"]) == (5, "steps")
            assert configuration["values"]["accuracy"]["mean"] == pytest.approx(
                int(configuration["labels"]["size"]) / 100
            )


@pytest.mark.slow
@pytest.mark.collect
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_a_sweep_with_the_profiler_leaves_traces_that_lint_reads(
    tmp_path: Path,
) -> None:
    options = ("--grid", "size=8", "--grid", "kind=narrow", "--repeat", "2")
    quick = ("--warmup", "1", "--timed", "2", "--active", "1", "--no-stack")
    done = start(command(tmp_path, *options, *quick), tmp_path)
    _, said = done.communicate(timeout=400)

    assert done.returncode == 0, said
    assert [item["repeat"] for item in rows(tmp_path).values()] == [1, 2]
    for name, row in rows(tmp_path).items():
        assert (tmp_path / "out" / "sizes" / name / row["trace"]).is_file()
    report = traceq("sweep", "report", tmp_path / "out" / "sizes", "--format", "json")
    document = json.loads(report.out)
    assert document["linted"] == 1
    assert document["configurations"][0]["values"]["step"]["of"] == "runs"


def refused(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(COLLECT), "sweep", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--", "python", "a.py"], "no --grid"),
        (["--grid", "n=1,2"], "no command"),
        (["--grid", "n=1,2", "--", "a", "{m}"], "no {n}"),
        (["--grid", "n", "--", "a", "{n}"], "--grid n"),
        (["--grid", "n=1", "--number", "loss=x", "--", "a", "{n}"], "one group"),
        (["--grid", "n=1", "--tokens", "{n}*x", "--", "a", "{n}"], "--tokens"),
        (["--grid", "n=1", "--peak-tflops", "x", "--", "a", "{n}"], "--peak-tflops"),
        (["--grid", "n=1", "--surprise", "--", "a", "{n}"], "--surprise"),
        (["--resume", "nowhere"], "no sweep to continue"),
        (["missing.toml"], "missing.toml"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(
    tmp_path: Path, words: list[str], message: str
) -> None:
    assert message in refused(tmp_path, *words)


def test_a_program_that_cannot_run_is_a_row(tmp_path: Path) -> None:
    words = ["--out", "out", "--name", "sizes", "--grid", "n=1"]
    run = [sys.executable, "-c", "import sys; sys.exit('no such {n}')"]
    text = refused(tmp_path, *words, "--", *run)

    (row,) = rows(tmp_path).values()
    assert row["status"] == "failed"
    assert "0 of 1 runs measured" in text


def test_a_number_that_no_run_printed_is_named(tmp_path: Path) -> None:
    words = ["--out", "out", "--name", "sizes", "--grid", "n=1,2"]
    patterns = ["--number", "loss=([0-9.]+)", "--number", r"lost=([0-9.]+)"]
    code = "print('loss={n}')"
    text = refused(tmp_path, *words, *patterns, "--", sys.executable, "-c", code)

    assert "--number lost=([0-9.]+) matched nothing" in text
    assert "--number loss=" not in text


def test_a_number_at_the_end_of_a_sentence_is_read(tmp_path: Path) -> None:
    words = ["--out", "out", "--name", "sizes", "--grid", "n=1"]
    words += ["--number", "loss=([0-9.]+)"]
    refused(tmp_path, *words, "--", sys.executable, "-c", "print('loss=0.{n}.')")

    (row,) = rows(tmp_path).values()
    assert row["numbers"]["loss"]["last"] == 0.1


def test_a_folder_with_a_blank_is_quoted_in_what_to_run_next(tmp_path: Path) -> None:
    words = ["--out", "my runs", "--name", "sizes", "--grid", "n=1"]
    text = refused(tmp_path, *words, "--", sys.executable, "-c", "{n}")

    assert "traceq sweep report 'my runs/sizes'" in text


def test_a_run_that_takes_too_long_is_a_row(tmp_path: Path) -> None:
    words = ["--out", "out", "--name", "sizes", "--grid", "n=60", "--timeout", "0.5"]
    run = [sys.executable, "-c", "import time; time.sleep({n})"]
    refused(tmp_path, *words, "--", *run)

    (row,) = rows(tmp_path).values()
    assert row["status"] == "timed out"


def test_a_sweep_is_not_continued_with_another_command(tmp_path: Path) -> None:
    words = ["--out", "out", "--name", "sizes", "--grid", "n=1", "--"]
    refused(tmp_path, *words, sys.executable, "-c", "{n}")
    text = refused(tmp_path, *words, sys.executable, "-c", "{n} + 1")

    assert "another command" in text


def test_a_sweep_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(
        'command = ["python", "bench.py", "{n}"]\nrepeat = 3\ntimes_only = true\n'
        'number = ["loss=([0-9.]+)"]\ntokens = "{n} * 8"\n'
        "peak_tflops = {bf16 = 989, fp32 = 67}\n[grid]\nn = [512, 1024]\n"
    )
    parse = module("launcher.sweep_options").parse
    chosen = parse([str(tmp_path / "sweep.toml"), "--repeat", "2"], "sweep")

    assert chosen.grid == {"n": ["512", "1024"]}
    assert (chosen.repeat, chosen.times_only, chosen.active) == (2, True, 0)
    assert chosen.command == ["python", "bench.py", "{n}"]
    assert chosen.peak_tflops == "bf16=989,fp32=67"


def test_each_configuration_runs_once_before_any_runs_again() -> None:
    runs = module("launcher.sweep_plan").runs({"a": ["1", "2"], "b": ["x", "y"]}, 3, 5)

    assert [run.repeat for run in runs] == [1] * 4 + [2] * 4 + [3] * 4
    assert len({run.name for run in runs}) == 12
    assert runs == module("launcher.sweep_plan").runs(
        {"a": ["1", "2"], "b": ["x", "y"]}, 3, 5
    )


def test_names_of_configurations_that_look_alike_differ() -> None:
    runs = module("launcher.sweep_plan").runs({"a": ["x/y", "x:y", "x_y"]}, 1, 0)

    assert len({run.name for run in runs}) == 3
    assert all("/" not in run.name for run in runs)


@pytest.mark.parametrize(
    ("text", "value"), [("8192", 8192), ("{a}*{b}", 6), ("2 * {a} ** {b} + 1", 17)]
)
def test_tokens_are_an_expression_of_labels(text: str, value: float) -> None:
    assert module("launcher.sweep_plan").amount(text, {"a": "2", "b": "3"}) == value


@pytest.mark.parametrize(
    "text", ["", "x", "{c}", "__import__('os')", "1/0", "9**99999999", "-1"]
)
def test_no_other_expression_is_computed(text: str) -> None:
    with pytest.raises(ValueError, match="is no number"):
        module("launcher.sweep_plan").amount(text, {"a": "2"})


def test_the_peak_may_depend_on_a_label() -> None:
    peak_of = module("launcher.sweep_options").peak_of

    assert peak_of("989", {"precision": "bf16"}) == 989
    assert peak_of("bf16=989,fp32=67", {"precision": "fp32"}) == 67
    assert peak_of("bf16=989", {"precision": "fp32"}) is None


def test_record_does_nothing_outside_of_a_recording(tmp_path: Path) -> None:
    code = (
        "import sys, traceq; traceq.record(loss=1.5); "
        "print(sorted({'polars', 'orjson', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "[]\n"
    assert list(tmp_path.iterdir()) == []


def test_record_works_where_traceq_is_not_installed(tmp_path: Path) -> None:
    # -S: no installed packages, and so no traceq; sitecustomize is imported by hand.
    code = (
        "import sitecustomize, traceq; traceq.record(loss={n}); "
        "traceq.record(loss=float('nan')); print(traceq.__spec__.loader)"
    )
    words = ["--out", "out", "--name", "sizes", "--grid", "n=3"]
    refused(tmp_path, *words, "--", sys.executable, "-S", "-c", code)

    (row,) = rows(tmp_path).values()
    loss = row["numbers"]["loss"]
    assert (loss["mean"], loss["n"], loss["not_finite"], loss["last"]) == (
        3,
        1,
        1,
        None,
    )


@pytest.mark.slow
@pytest.mark.collect
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_a_program_that_records_itself_records_its_numbers(tmp_path: Path) -> None:
    code = (
        "import torch, traceq\n"
        "with traceq.profile(out='out', name='run', overhead=False) as run:\n"
        "    for step in range(3):\n"
        "        traceq.record(level=torch.tensor(step))\n"
        "traceq.record(level=100)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=300)

    facts = json.loads((tmp_path / "out" / "run" / "run.json").read_text())
    level = facts["numbers"]["level"]
    assert (level["last"], level["mean"], level["n"]) == (2, 1, 3)
