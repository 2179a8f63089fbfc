"""All ranks of a job in one trace: on one clock, wait and transfer told apart."""

from __future__ import annotations

import gzip
import io
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from command import traceq
from linting import bundled_rules
from ranking import Works, analysed, write_job

from traceq.annotate.job import write_job as write_one_file
from traceq.annotate.splice import Output
from traceq.inputs.load_trace import load
from traceq.linter.config import Config
from traceq.ranks.findings import lint_job

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real

_US = 1000
_LATE = 600


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a job of three ranks, of which one comes late."""
    folder = tmp_path_factory.mktemp("job")
    return write_job(folder / "traces", [Works(), Works(sleep=_LATE), Works()])


@pytest.fixture(scope="module")
def events(job: Path) -> list[dict[str, Any]]:
    file = job.parent / "job.json.gz"
    done = traceq("annotate", job, "-o", file, "--no-cache")
    assert done.status == 0, done.err
    assert "3 ranks on one clock" in done.out
    result = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    assert isinstance(result, list)
    return result


def _processes(events: list[dict[str, Any]]) -> dict[str, int]:
    return {
        event["args"]["name"]: event["pid"]
        for event in events
        if event["name"] == "process_name"
    }


def _slices(events: list[dict[str, Any]], process: str, name: str) -> list[Any]:
    pid = _processes(events)[process]
    return [
        event
        for event in events
        if event["ph"] == "X" and event["pid"] == pid and event["name"].startswith(name)
    ]


def test_each_rank_is_a_process(events: list[dict[str, Any]]) -> None:
    assert set(_processes(events)) == {"traceq", "rank 0", "rank 1", "rank 2"}


def test_ranks_wait_for_the_late_one(events: list[dict[str, Any]]) -> None:
    for rank, waits in (("rank 0", True), ("rank 1", False), ("rank 2", True)):
        result = _slices(events, rank, "wait")
        assert bool(result) == waits
        assert all(entry["dur"] == pytest.approx(_LATE, abs=1) for entry in result)


def test_wait_and_transfer_are_all_of_a_collective(
    events: list[dict[str, Any]],
) -> None:
    for rank in ("rank 0", "rank 1", "rank 2"):
        whole = sum(item["dur"] for item in _slices(events, rank, "all_reduce"))
        parts = sum(
            item["dur"]
            for name in ("wait", "transfer")
            for item in _slices(events, rank, name)
        )
        assert whole > 0
        assert parts == pytest.approx(whole)


def test_a_collective_ends_on_all_ranks_at_once(events: list[dict[str, Any]]) -> None:
    ends = [
        [
            round(item["ts"] + item["dur"])
            for item in _slices(events, rank, "all_reduce")
        ]
        for rank in ("rank 0", "rank 1", "rank 2")
    ]
    assert ends[0] == ends[1] == ends[2]
    assert len(ends[0]) > 2


def test_the_late_rank_has_a_track_of_when_others_wait_for_it(
    events: list[dict[str, Any]],
) -> None:
    result = _slices(events, "rank 1", "2 wait for this rank (all_reduce)")
    assert result
    assert not _slices(events, "rank 0", "2 wait for")
    assert result[0]["dur"] == pytest.approx(_LATE, abs=1)


def test_arrows_lead_from_the_late_rank_to_those_that_wait(
    events: list[dict[str, Any]],
) -> None:
    pids = _processes(events)
    starts = {event["id"]: event["pid"] for event in events if event["ph"] == "s"}
    ends = {event["id"]: event["pid"] for event in events if event["ph"] == "f"}
    assert set(starts.values()) == {pids["rank 1"]}
    assert set(ends.values()) == {pids["rank 0"], pids["rank 2"]}
    assert starts.keys() == ends.keys()


def test_kernels_and_steps_are_there(events: list[dict[str, Any]]) -> None:
    assert len(_slices(events, "rank 2", "step ")) > 2
    assert len(_slices(events, "rank 2", "gemm")) > 2


def test_slices_of_a_track_nest(events: list[dict[str, Any]]) -> None:
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start = round(_US * event["ts"])
            end = start + round(_US * event["dur"])
            tracks[event["pid"], event["tid"]].append((start, -end))
    for track in tracks.values():
        until: list[int] = []
        for start, end in sorted(track):
            while until and until[-1] <= start:
                until.pop()
            assert not until or -end <= until[-1]
            until.append(-end)


def test_a_few_steps_of_a_job_can_be_cut(job: Path) -> None:
    file = job.parent / "cut.json"
    done = traceq("annotate", job, "-o", file, "--steps", "1", "--no-cache")
    assert done.status == 0, done.err
    result = json.loads(file.read_text())["traceEvents"]
    assert len(_slices(result, "rank 0", "step ")) == 1
    assert min(entry["ts"] for entry in result if entry["ph"] == "X") == 0


def test_kernels_that_do_not_fit_are_left_out_shortest_first(job: Path) -> None:
    analysis = analysed(job)
    report = lint_job("job", analysis, bundled_rules(), Config())
    stream = io.BytesIO()
    output = Output(stream, packed=False, most_text=6_000)
    written = write_one_file(
        analysis,
        report.outcomes[0],
        lambda rank: load(job / f"rank{rank}.json", cache=False),
        output,
    )
    result = json.loads(stream.getvalue())["traceEvents"]
    assert written.left_out > 0
    assert len(_slices(result, "rank 0", "adam")) < len(
        _slices(result, "rank 0", "gemm")
    )
