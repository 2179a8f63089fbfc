"""Steps that differ: which the averages are over, and what is said of the others."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from command import traceq as command
from test_runs import rank, write

import traceq
from traceq.analysis.base.steady import steady_steps
from traceq.model.run import LongSteps
from traceq.testing import draw, load_drawn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SHORT, LONG = 70, 700
LONG_STEPS = {"share": 0.0625, "ms": 0.6, "typical_ms": 0.06}


def drawn(*lengths: int, paused: bool = False) -> str:
    """Return steps of these lengths; one that is longer does more, unless it pauses."""
    host, ops, calls, gpu = ["host "], ["host "], ["host "], ["gpu 7"]
    number = 0
    for step, length in enumerate(lengths, 1):
        host.append(f"[ProfilerStep#{step}".ljust(length - 1) + "]")
        works = 1 if paused else length // SHORT
        for _ in range(works):
            number += 1
            ops.append(" [aten::mm".ljust(40) + "]")
            calls.append(f"  [cudaLaunchKernel>{number}".ljust(39) + "]")
            gpu.append(" " * 35 + f"[gemm<{number}".ljust(20) + "]")
            for line, used in ((ops, 41), (calls, 40), (gpu, 56)):
                line.append(" " * (length // works - used))
    return "\n".join("".join(line) for line in (host, ops, calls, gpu))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "stderr.log").write_text("")
    return folder


def record(
    run: Path, lengths: Sequence[int], window: str | None, **timed: object
) -> traceq.Trace:
    """Write a run that recorded steps of these lengths; return its trace."""
    content = json.dumps(draw(drawn(*lengths))).encode()
    (run / "rank-0.trace.json.gz").write_bytes(gzip.compress(content))
    trace = {"file": "rank-0.trace.json.gz", "compiled_during_trace": False}
    if window:
        trace |= {"window": window}
    times = {"ms": 0.09, "median_ms": 0.06, "min_ms": 0.05, "max_ms": 0.7, "steps": 48}
    step_time = times | {"long_steps": LONG_STEPS, "period": 16} | timed
    write(run, [rank(0, trace=trace, step_time=step_time, warmup={"steps": 10})])
    return traceq.load(run, cache=False)


def said(run: Path) -> str:
    return " ".join(command("lint", run, "-v").out.split())


def kinds(run: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(command("lint", run, "--format", "json").out)
    return document["recordings"][0]["step_kinds"]


def test_a_long_first_step_of_a_period_is_no_warm_up(run: Path) -> None:
    trace = record(run, [LONG, *[SHORT] * 15], "period")

    assert steady_steps(trace).count == 16


def test_a_long_first_step_of_a_period_counts_though_something_was_compiled(
    run: Path,
) -> None:
    record(run, [LONG, *[SHORT] * 15], "period")
    manifest = json.loads((run / "run.json").read_text())
    manifest["ranks"][0]["trace"]["compiled_during_trace"] = True
    (run / "run.json").write_text(json.dumps(manifest))

    assert steady_steps(traceq.load(run, cache=False)).count == 16


@pytest.mark.real
def test_a_whole_period_is_said_in_one_line(run: Path) -> None:
    record(run, [LONG, *[SHORT] * 15], "period")

    shown = command("lint", run, "-v").lines

    line = "16 steps, one whole period: 1 in 16 takes 600 µs, the others 60.0 µs"
    assert line in shown


def test_the_measured_step_of_a_whole_period_is_its_mean(run: Path) -> None:
    trace = record(run, [LONG, *[SHORT] * 15], "period")

    assert trace.step_ns == round((600_000 + 15 * 60_000) / 16)


@pytest.mark.real
def test_typical_steps_say_what_was_not_recorded(run: Path) -> None:
    record(run, [SHORT] * 3, "typical", period=None)

    assert (
        "3 typical steps; 1 in 16 takes 600 µs instead of 60.0 µs, 40% of the time:"
        " not recorded, --active 16 records one"
    ) in said(run)


def test_typical_steps_are_compared_with_the_typical_step(run: Path) -> None:
    trace = record(run, [SHORT] * 3, "typical", ms=0.5)

    assert trace.step_ns == 60_000
    assert not trace.step_in_doubt


@pytest.mark.parametrize("window", ["consecutive", None])
def test_a_long_step_that_is_too_frequent_is_left_out(
    window: str | None, run: Path
) -> None:
    trace = record(run, [SHORT, LONG, SHORT], window)

    assert trace.steps["averaged"].to_list() == [False, False, True]
    assert steady_steps(trace).kernels.height == 1
    assert trace.step_ns == 60_000


@pytest.mark.real
def test_steps_that_are_left_out_are_said_with_their_share_of_the_time(
    run: Path,
) -> None:
    record(run, [SHORT, LONG, SHORT], "consecutive")

    assert (
        "averages are over 1 of 3 steps, none of them long, since 1 in 16 takes 600 µs"
        " instead of 60.0 µs, 40% of the time; --active 16 records a whole period"
    ) in said(run)


def test_long_steps_that_are_as_frequent_as_in_the_program_stay(run: Path) -> None:
    trace = record(run, [*[SHORT] * 9, LONG, *[SHORT] * 6], "consecutive")

    assert trace.steps["averaged"].all()


def test_steps_that_follow_each_other_are_chosen(run: Path) -> None:
    half = {"share": 0.5, "ms": 0.6, "typical_ms": 0.06}

    trace = record(
        run, [LONG, LONG, SHORT, LONG, SHORT], None, long_steps=half, period=2
    )

    assert trace.steps["averaged"].to_list() == [False, *[True] * 4]


@pytest.mark.real
def test_json_has_the_kinds_of_steps(run: Path) -> None:
    record(run, [SHORT, LONG, SHORT], "consecutive")

    result = kinds(run)

    assert {
        name: result[name] for name in ("recorded", "recorded_long", "averaged")
    } == {
        "recorded": 3,
        "recorded_long": 1,
        "averaged": 1,
    }
    assert result["long_share"] == pytest.approx(1 / 16)
    assert result["long_time_share"] == pytest.approx(0.4)
    assert (result["long_ns"], result["typical_ns"]) == (600_000, 60_000)


@pytest.mark.real
def test_steps_that_are_alike_have_no_kinds(run: Path) -> None:
    record(run, [SHORT] * 3, "consecutive", long_steps=None, period=None)

    assert kinds(run) is None


@pytest.mark.real
@pytest.mark.parametrize(
    "broken",
    [
        {"share": 2, "ms": 3, "typical_ms": 1},
        {"share": 0.1, "ms": 1, "typical_ms": 3},
        {"share": "often", "ms": None, "typical_ms": 3},
        [1],
        {"share": 0.1, "ms": 1e300, "typical_ms": 1},
    ],
)
@pytest.mark.slow
def test_long_steps_that_make_no_sense_are_not_used(broken: object, run: Path) -> None:
    record(run, [SHORT] * 3, "consecutive", long_steps=broken)

    assert kinds(run) is None


@pytest.mark.real
def test_a_bare_trace_says_that_its_steps_differ(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(draw(drawn(SHORT, LONG, SHORT))))

    assert (
        "the steps differ: 1 of 3 takes 700 µs, the others 70.0 µs, as recorded; how"
        " often each comes is not known, so the average may not be typical"
    ) in said(file)


@pytest.mark.real
def test_a_step_with_a_pause_is_of_no_other_kind(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(draw(drawn(SHORT, LONG, SHORT, paused=True))))

    assert "the steps differ" not in said(file)


@pytest.mark.parametrize(
    ("recorded", "long"),
    [
        ([10, 340, 12], [False, True, False]),
        ([10, 14, 12], [False, False, False]),
        ([340, 350], [True, True]),
        ([], []),
    ],
)
def test_long_steps_are_those_above_the_widest_gap(
    recorded: list[int], long: list[bool]
) -> None:
    assert LongSteps(0.0625, 331, 9).among(recorded) == long


def test_drawn_steps_are_as_long_as_asked_for() -> None:
    assert load_drawn(drawn(SHORT, LONG)).steps["dur"].to_list() == [70_000, 700_000]


def test_a_measured_step_that_does_not_fit_is_shown_with_the_recorded_one(
    run: Path,
) -> None:
    record(run, [SHORT] * 3, None, ms=0.9, median_ms=0.9, long_steps=None, period=None)

    shown = command("lint", run).err

    assert "a step takes 900 µs measured without the profiler, and 70.0 µs" in shown
    assert "the measured one is not used" in shown


@pytest.mark.parametrize("name", ["summary", "diff", "report", "regions"])
def test_no_command_drops_a_measured_step_silently(
    run: Path, tmp_path: Path, name: str
) -> None:
    record(run, [SHORT] * 3, None, ms=0.9, median_ms=0.9, long_steps=None, period=None)
    more: dict[str, list[Path | str]] = {
        "diff": [run],
        "report": ["-o", tmp_path / "report.html"],
    }

    shown = command(name, run, *more.get(name, []), "--no-cache").err

    assert "a step takes 900 µs measured without the profiler, and 70.0 µs" in shown


def _doubtful(run: Path) -> None:
    slow = {"ms": 9.0, "median_ms": 9.0, "min_ms": 9.0, "max_ms": 9.0}
    record(run, [SHORT] * 3, None, long_steps=None, period=None, **slow)


@pytest.mark.real
@pytest.mark.parametrize("name", ["lint", "summary"])
def test_a_doubtful_measured_step_is_in_the_report(run: Path, name: str) -> None:
    _doubtful(run)

    assert "9.00 ms a step measured, 70.0 µs as recorded" in " ".join(
        command(name, run, "--no-cache").out.split()
    )


@pytest.mark.real
def test_a_doubtful_measured_step_is_in_the_json(run: Path) -> None:
    _doubtful(run)

    lint, summary = (
        json.loads(command(name, run, "--no-cache", "--format", "json").out)
        for name in ("lint", "summary")
    )
    assert lint["recordings"][0]["doubtful_step_ns"] == 9_000_000
    assert summary["traces"][0]["doubtful_step_ns"] == 9_000_000
