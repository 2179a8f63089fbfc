"""A run folder of traceq collect is read as one thing."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from command import traceq as command
from conftest import ROOT

import traceq
from traceq.errors import InputError, UsageError
from traceq.formats.run import read_run
from traceq.inputs.load_recording import load_recording
from traceq.inputs.options import UNCACHED
from traceq.testing import draw

TRACE = ROOT / "fixtures" / "copies" / "trace.json.gz"
STEP_TIME = {"ms": 13.2, "median_ms": 13.1, "min_ms": 13, "max_ms": 14, "steps": 20}


def rank(number: int, **other: object) -> dict[str, Any]:
    return {
        "format": 1,
        "name": f"rank-{number}",
        "rank": number,
        "state": "done",
        "step_time": STEP_TIME,
        "trace": {"file": f"rank-{number}.trace.json.gz"},
        "memory": None,
        "missing": [],
    } | other


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    write(folder, [rank(0)])
    shutil.copy(TRACE, folder / "rank-0.trace.json.gz")
    (folder / "stderr.log").write_text("a warning\nanother\n")
    return folder


def write(folder: Path, ranks: list[dict[str, Any]], **other: object) -> None:
    manifest = {
        "format": 1,
        "command": ["python", "train.py"],
        "labels": {"seq_len": "512"},
        "state": "finished",
        "log": {"file": "stderr.log"},
        "ranks": ranks,
    }
    (folder / "run.json").write_text(json.dumps(manifest | other))


def test_the_trace_comes_with_its_run_and_its_true_step_time(run: Path) -> None:
    trace = traceq.load(run)

    assert trace.ops.height == traceq.load(TRACE).ops.height
    assert trace.step_ns == 13_200_000
    assert trace.run is not None
    assert trace.run.command == ("python", "train.py")
    assert trace.run.labels == {"seq_len": "512"}


def test_a_file_name_that_is_too_long_for_a_file_names_none(run: Path) -> None:
    write(run, [rank(0), rank(1, memory={"file": "a" * 3000})])

    loaded = read_run(run)

    assert [item.memory for item in loaded.ranks] == [None, None]


def recorded_ns() -> float:
    return float(traceq.load(TRACE).steps["time"].mean())  # type: ignore[arg-type]  # a number


def timed(ms: float, median_ms: float) -> dict[str, Any]:
    return STEP_TIME | {"ms": ms, "median_ms": median_ms}


def test_the_usual_step_is_the_true_one_where_steps_differ_and_recorded_ones_do_not(
    run: Path,
) -> None:
    write(run, [rank(0, step_time=timed(26.5, 13.1))])

    assert traceq.load(run).step_ns == 13_100_000


def test_both_steps_are_said_where_they_differ(run: Path) -> None:
    write(run, [rank(0, step_time=timed(26.5, 13.1))])

    shown = " ".join(command("summary", run).out.split())
    assert "26.50 ms a step without the profiler" in shown
    assert "13.10 ms at the median" in shown


def test_a_true_step_three_times_the_recorded_one_is_not_used_and_that_is_said(
    run: Path,
) -> None:
    long = 3.1 * recorded_ns() / 1e6
    write(run, [rank(0, step_time=timed(long, long))])

    assert traceq.load(run).step_ns is None
    shown = command("lint", run)
    assert "so the measured one is not used" in " ".join(shown.err.split())
    assert "estimated without the profiler" in " ".join(shown.out.split())


def test_torch_is_of_the_version_that_the_rank_had(run: Path) -> None:
    write(run, [rank(0, versions={"torch": "2.11.0+cu130"})])

    assert traceq.load(run).facts.torch == "torch 2.11"


WITH_A_LONG_FIRST_STEP = """
host  [ProfilerStep#1                           ][ProfilerStep#2][ProfilerStep#3]
host   [aten::mm                               ]  [aten::mm]      [aten::mm]
"""


@pytest.mark.parametrize(
    ("facts", "warm_up"),
    [
        ({"warmup": {"steps": 10}, "compiled": False}, False),
        ({"warmup": {"steps": 10}, "compiled": True}, True),
        ({"warmup": None, "compiled": False}, True),
    ],
)
def test_what_was_traced_after_the_warm_up_has_none(
    facts: dict[str, Any], *, warm_up: bool, run: Path
) -> None:
    drawn = json.dumps(draw(WITH_A_LONG_FIRST_STEP)).encode()
    (run / "rank-0.trace.json.gz").write_bytes(gzip.compress(drawn))
    trace = {
        "file": "rank-0.trace.json.gz",
        "compiled_during_trace": facts["compiled"],
    }
    write(run, [rank(0, warmup=facts["warmup"], trace=trace)])

    assert traceq.load(run).steps["warmup"].to_list() == [warm_up, False, False]


def test_the_summary_of_a_measured_run_is_of_the_measured_step(run: Path) -> None:
    alone, measured = (
        json.loads(command("summary", path, "--format", "json").out)["traces"][0]
        for path in (TRACE, run)
    )
    recorded = measured["as_recorded"]["step_ns"]

    assert measured["compute"]["rate"] == pytest.approx(
        alone["compute"]["rate"] * recorded / 13_200_000
    )


def test_the_rows_of_measured_runs_have_the_measured_step_beside_the_recorded(
    run: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    titles, *rows = command("summary", run, other).lines
    mixed = command("summary", run, TRACE).lines

    assert titles.startswith("trace  seq_len  steps  recorded ms  measured ms  busy")
    assert [row.split()[1:5] for row in rows] == [["512", "2", "14.39", "13.20"]] * 2
    assert mixed[2].split()[1:5] == ["-", "2", "14.39", "-"]


@pytest.mark.parametrize(
    ("facts", "cores"),
    [
        ({"cores": 8, "switches": {"cpu_threads": 4}}, 8),
        ({"switches": {"cpu_threads": 4}}, 4),
        # torchrun sets it to 1, whatever the machine has.
        (
            {
                "switches": {"cpu_threads": 1},
                "environment": {"OMP_NUM_THREADS": "1"},
            },
            None,
        ),
    ],
)
def test_the_cores_of_a_process_are_known_unless_only_torchs_threads_are(
    facts: dict[str, Any], cores: int | None, run: Path
) -> None:
    write(run, [rank(0, **facts)])

    result = traceq.load(run).rank

    assert result is not None
    assert result.cores == cores


def test_a_trace_alone_has_no_run(run: Path) -> None:
    trace = traceq.load(run / "rank-0.trace.json.gz")

    assert (trace.run, trace.step_ns) == (None, None)


def test_the_log_is_read_with_the_trace(run: Path) -> None:
    recording = load_recording(run, UNCACHED)

    assert recording.log is not None
    assert recording.log["text"].to_list() == ["a warning", "another"]
    assert recording.step_ns == 13_200_000


def test_the_lowest_rank_is_loaded_unless_another_is_wanted(run: Path) -> None:
    write(run, [rank(3), rank(0)])
    shutil.copy(
        ROOT / "fixtures" / "recompile" / "trace.json.gz", run / "rank-3.trace.json.gz"
    )

    assert traceq.load(run).facts.path.endswith("rank-0.trace.json.gz")
    assert traceq.load(run, rank=3).facts.path.endswith("rank-3.trace.json.gz")


def test_a_rank_that_is_not_there_is_named_with_those_that_are(run: Path) -> None:
    with pytest.raises(InputError, match="there is no rank 7, the ranks are 0"):
        traceq.load(run, rank=7)


def test_a_file_has_no_rank() -> None:
    with pytest.raises(UsageError, match="is no run folder, so it has no rank 1"):
        traceq.load(TRACE, rank=1)


def test_a_run_without_a_trace_says_why(run: Path) -> None:
    why = {"what": "trace", "why": "the program ended while it warmed up"}
    write(run, [rank(0, trace=None, missing=[why])])

    with pytest.raises(InputError, match="no trace: the program ended while it warmed"):
        traceq.load(run)


def test_a_run_whose_launcher_was_killed_is_read_from_its_ranks(run: Path) -> None:
    write(run, [], state="running")
    (run / "rank-0.json").write_text(json.dumps(rank(0)))

    trace = traceq.load(run)

    assert trace.step_ns == 13_200_000
    assert trace.run is not None
    assert trace.run.state == "running"


def test_a_manifest_reaches_no_file_outside_of_its_folder(run: Path) -> None:
    shutil.copy(TRACE, run.parent / "outside.json.gz")
    write(run, [rank(0, trace={"file": "../outside.json.gz"})])

    with pytest.raises(InputError, match="has no trace"):
        traceq.load(run)


def test_a_newer_format_is_refused(run: Path) -> None:
    write(run, [rank(0)], format=2)

    with pytest.raises(InputError, match="newer traceq"):
        traceq.load(run)


@pytest.mark.parametrize(
    "broken",
    ["", "[1]", "null", '{"ranks": 3, "command": 4, "labels": [], "log": "x"}'],
)
def test_a_broken_manifest_is_no_crash(broken: str, run: Path) -> None:
    (run / "run.json").write_text(broken)

    with pytest.raises(InputError, match="has no trace"):
        traceq.load(run)


@pytest.mark.parametrize("ms", [None, "fast", -1, 0, 1e300])
def test_a_step_time_that_is_none_is_not_used(ms: object, run: Path) -> None:
    write(run, [rank(0, step_time=STEP_TIME | {"ms": ms})])

    assert traceq.load(run).step_ns is None


def test_the_summary_shows_command_labels_and_true_step(run: Path) -> None:
    said = command("summary", str(run)).out

    assert "python train.py · seq_len=512" in said
    assert "13.20 ms a step without the profiler" in said


@pytest.mark.parametrize("words", [["lint"], ["diff", str(TRACE)]])
def test_a_recording_with_a_remedy_is_labelled(words: list[str], run: Path) -> None:
    write(run, [rank(0)], labels={"remedy": "fused_optimizer"})

    said = command(*words, str(run)).err

    assert "was recorded with the remedy fused_optimizer" in said


@pytest.mark.parametrize("named", ["", "try.json"])
def test_a_trial_is_read_without_its_remedies(named: str, run: Path) -> None:
    trial = run.parent / "trial"
    for name in ("plain", "fused_optimizer"):
        shutil.copytree(run, trial / name)
    (trial / "try.json").write_text("{}")

    done = command("lint", str(trial / named))

    assert "its recording without remedies is read" in done.err
    assert done.out.splitlines()[0] == str(trial / "plain")


def test_the_summary_of_several_ranks_has_a_row_each(run: Path) -> None:
    write(run, [rank(0), rank(1)])
    shutil.copy(TRACE, run / "rank-1.trace.json.gz")

    lines = command("summary", str(run)).out.splitlines()

    assert [line.split()[0] for line in lines] == ["trace", "rank-0", "rank-1"]


def test_lint_takes_the_true_step_time(run: Path) -> None:
    said = command("lint", str(run), "-v").out

    assert "13.2 ms measured without the profiler" in " ".join(said.split())


WITHOUT_GPU_WORK = """
host  [ProfilerStep#1      ][ProfilerStep#2      ]
host   [aten::mm          ]  [aten::mm          ]
"""


def without_gpu_work(run: Path, **facts: object) -> None:
    drawn = json.dumps(draw(WITHOUT_GPU_WORK)).encode()
    (run / "rank-0.trace.json.gz").write_bytes(gzip.compress(drawn))
    write(run, [rank(0, step_time=None, **facts)])


@pytest.mark.parametrize(
    "facts",
    [
        {"device": "cuda:0"},
        {"state": "incomplete"},
        {"missing": [{"what": "GPU work", "why": "CUPTI is used by another tool"}]},
    ],
)
def test_a_run_on_a_gpu_without_gpu_work_fails_with_that_first(
    facts: dict[str, Any], run: Path
) -> None:
    without_gpu_work(run, **facts)

    shown = command("lint", run, "--format", "json")

    assert shown.status == 1
    worst = json.loads(shown.out)["recordings"][0]["findings"][0]
    assert (worst["code"], worst["severity"]) == ("TRC005", "error")


def test_a_run_without_gpu_work_quotes_why_and_counts_the_attempts(run: Path) -> None:
    why = [{"what": "GPU work", "why": "CUPTI is used by another tool"}]
    tried = {"stacks": True, "steps": [9], "why": "no GPU work"}
    trace = {"file": "rank-0.trace.json.gz", "attempts": [tried, tried]}
    without_gpu_work(run, device="cuda:0", missing=why, trace=trace)

    shown = " ".join(command("lint", run, "-v").out.split())

    assert "TRC005 lost-gpu-work (error)" in shown
    assert "CUPTI is used by another tool" in shown
    assert "attempts 3 of which 2 were discarded" in shown
    assert "record again with traceq collect" in shown


def test_a_run_on_the_cpu_lacks_no_gpu_work(run: Path) -> None:
    without_gpu_work(run, device="cpu")

    assert "TRC005" not in command("lint", run).out


ONCE = "host  [aten::conv2d][aten::relu][aten::layer_norm][aten::linear][aten::sum]"


def test_a_window_of_time_without_a_loop_says_how_to_mark_steps(run: Path) -> None:
    drawn = json.dumps(draw(ONCE)).encode()
    (run / "rank-0.trace.json.gz").write_bytes(gzip.compress(drawn))
    steps = {"by": "time", "of": None, "seen": 0}
    write(run, [rank(0, step_time=None, device="cpu", steps=steps)])

    shown = " ".join(command("lint", run, "-v").out.split())

    assert "no steps, the whole trace of" in shown
    assert "no steps were counted, and nothing that repeats was found" in shown


def test_a_window_of_time_has_the_iterations_of_its_loop(run: Path) -> None:
    step = "[aten::embedding][aten::linear][aten::gelu][aten::linear][aten::argmax]"
    drawn = json.dumps(draw(f"host [aten::linear][aten::argmax]{step * 5}")).encode()
    (run / "rank-0.trace.json.gz").write_bytes(gzip.compress(drawn))
    steps = {"by": "time", "of": None, "seen": 0}
    write(run, [rank(0, step_time=None, device="cpu", steps=steps)])

    shown = " ".join(command("lint", run, "-v").out.split())

    assert "5 steps of" in shown
    assert "taken from what repeats (likely)" in shown


# Runs by their folder.


def run_of(folder: Path, trace: Path, *, age: int = 0) -> Path:
    """Write a run of one rank that is some seconds old."""
    folder.mkdir(parents=True)
    shutil.copy(trace, folder / "rank-0.trace.json.gz")
    facts = {"format": 1, "command": ["python", "x.py"], "ranks": [rank(0)]}
    (folder / "run.json").write_text(json.dumps(facts))
    moment = (folder / "run.json").stat().st_mtime - age
    os.utime(folder / "run.json", (moment, moment))
    return folder


OTHER = ROOT / "fixtures" / "twins" / "copies_fixed" / "trace.json.gz"


def test_lint_without_a_path_takes_the_newest_run_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_of(tmp_path / "traceq-runs" / "b", TRACE)
    run_of(tmp_path / "traceq-runs" / "a-later-name", OTHER, age=60)
    monkeypatch.chdir(tmp_path)

    answer = command("lint", "--format", "json")

    assert "the newest run, traceq-runs/b" in answer.err
    (result,) = json.loads(answer.out)["recordings"]
    assert "traceq-runs/b" in result["name"]


def test_lint_without_a_path_and_without_a_run_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    answer = command("lint")

    assert answer.status == 2
    assert "no path was named, and traceq-runs has no run" in answer.err


def test_a_folder_of_runs_is_several_runs(tmp_path: Path) -> None:
    for name, trace in (("run-10", TRACE), ("run-9", OTHER)):
        run_of(tmp_path / name, trace)
    (tmp_path / ".gitignore").write_text("*\n")

    names = [outcome.name for outcome in traceq.lint(tmp_path).report.outcomes]

    assert [Path(name).name for name in names] == ["run-9", "run-10"]


def test_a_folder_of_runs_is_not_a_job(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run_of(tmp_path / name, TRACE)

    answer = command("ranks", tmp_path)

    assert answer.status == 2
    assert "has 2 runs in it: give one" in answer.err
