"""Time of a step that the recording does not show: what is said of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from linting import outcome

from traceq.formats.run import read_run
from traceq.model.recording import Recording
from traceq.model.run import Rank, Run, StepTime, last_level
from traceq.testing import load_drawn

_LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
_NOT_THERE = "of a step are not in the recording"
_QUEUE = "the wait for the DataLoader's workers may be hidden"


def lacks(
    step_ns: int | None,
    region: str = "data",
    rank: Rank | None = None,
    run: Run | None = None,
) -> str:
    """Return what is lacking in a recorded step of 100 µs that waits for the host."""
    trace = load_drawn(
        f"""
        host   [ProfilerStep#1 {" " * 83}]
        host    [@{region:<65}] [aten::mm           ]
        host    {" " * 70}[cudaLaunchKernel>1]
        gpu 7   {" " * 85}[gemm<1]
        """.replace("[@enumerate", "[enumerate")
    )
    trace = replace(trace, rank=rank, run=run)
    recording = Recording("drawn", trace=trace, step_ns=step_ns)
    facts = outcome(recording, "HST003").facts
    return "; ".join(facts.lacks if facts else ())


def test_a_step_longer_than_as_recorded_has_time_that_the_recording_lacks() -> None:
    text = lacks(150_000)

    assert _NOT_THERE in text
    assert "150 µs" in text


@pytest.mark.parametrize("step_ns", [None, 60_000, 105_000])
def test_a_step_about_as_long_as_recorded_or_shorter_lacks_nothing(
    step_ns: int | None,
) -> None:
    assert _NOT_THERE not in lacks(step_ns)


@pytest.mark.parametrize(("region", "hidden"), [(_LOADER, True), ("data", False)])
def test_with_workers_the_wait_for_them_may_be_what_is_lacking(
    region: str, *, hidden: bool
) -> None:
    assert (_QUEUE in lacks(150_000, region)) == hidden


def test_steps_that_went_to_another_level_have_the_last_one() -> None:
    laps = [88.0] * 11 + [83.1, 63.5, 56.4, 53.8, 87.4, 53.3, 53.3, 54.8, 53.3]

    assert last_level(laps) == pytest.approx(55.5, abs=0.1)
    assert StepTime(76, 87, 53, 92, 20, last_level_ns=55).like([62, 63]) == 55


@pytest.mark.parametrize(
    "laps",
    [
        [50, 22, 49, 46, 32, 54, 27, 69, 53, 61, 60, 49, 58, 44, 43, 41, 63, 54],
        [170, 117, 116, 116, 116, 121, 179, 137, 118, 117, 116, 116, 120, 116, 116],
        [60.0] * 10 + [55.0] * 10,
    ],
)
def test_steps_that_vary_have_no_other_level(laps: list[float]) -> None:
    assert last_level(laps) is None


def test_a_change_of_level_long_before_the_recording_does_not_count(
    tmp_path: Path,
) -> None:
    laps = [90.0] * 50_000 + [50.0] * 1_000
    figures = dict.fromkeys(("ms", "median_ms", "min_ms", "max_ms"), 50.0)
    timed = {**figures, "steps": len(laps), "laps_ms": laps}
    rank = {"name": "rank-0", "rank": 0, "step_time": timed}
    facts = {"format": 1, "tool": "traceq collect", "command": ["x"], "ranks": [rank]}
    (tmp_path / "run.json").write_text(json.dumps(facts))

    (read,) = read_run(tmp_path).ranks

    assert read.step_time is not None
    assert read.step_time.last_level_ns is None


def test_the_change_of_level_is_a_note() -> None:
    timed = StepTime(130_000, 150_000, 90_000, 160_000, 20, last_level_ns=95_000)
    rank = Rank("", 0, "", None, None, timed, ())

    assert "is of the last measured steps alone" in lacks(95_000, rank=rank)
    assert "last measured" not in lacks(60_000, rank=rank)


def test_a_program_that_failed_after_its_recording_says_so() -> None:
    run = Run(Path(), (), {}, (), (), "finished", failed_with="status 1")

    assert "ended with status 1 after" in lacks(None, run=run)
    assert "ended with" not in lacks(None, run=replace(run, failed_with=""))


@pytest.mark.parametrize(
    ("ended", "failed_with"),
    [
        ({"status": 1, "signal": None}, "status 1"),
        ({"status": -9, "signal": "SIGKILL"}, "SIGKILL"),
        ({"status": -15, "signal": "SIGTERM", "stopped_by_traceq": True}, ""),
        ({"status": 0, "signal": None}, ""),
    ],
)
def test_a_run_folder_tells_how_its_program_failed(
    ended: dict[str, object], failed_with: str, tmp_path: Path
) -> None:
    facts = {"format": 1, "tool": "traceq collect", "command": ["x"], "exit": ended}
    (tmp_path / "run.json").write_text(json.dumps(facts))

    assert read_run(tmp_path).failed_with == failed_with
