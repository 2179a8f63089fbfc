"""Overhead of recording, as collect measures it once the program has ended."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from collecting import LOOP, WITH_TORCH, Late, Run, collect_program, module

from traceq.formats.run import read_run

if TYPE_CHECKING:
    from pathlib import Path

MEASURING = ("--warmup", "2", "--timed", "3", "--active", "2")
STEPS = """
for _ in range(20):
    step()
"""

overhead = module("launcher.overhead")
measure = Late("overhead.measure")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("measured")
    return collect_program(folder, LOOP + STEPS, MEASURING)


def with_torch(test: Any) -> Any:  # noqa: ANN401 - a test
    for mark in WITH_TORCH:
        test = mark(test)
    return test


@with_torch
def test_the_cost_of_an_event_is_measured_after_the_program(measured: Run) -> None:
    result = measured.facts["recorder_overhead"]
    assert measured.status == 0
    assert (result["device"], result["stacks"], result["call"]) == ("cpu", True, None)
    for kind in ("frame", "op"):
        assert 0 < result[kind]["overhead_ns"] < 1_000_000
    assert result["frame"]["overhead_ns"] < result["op"]["overhead_ns"]


@with_torch
def test_events_are_counted_in_a_trace(measured: Run) -> None:
    rows = measured.facts["recorder_overhead"]["measured"]
    assert rows["views"]["op"] == 300  # t, transpose and as_strided, 100 times
    assert rows["in_place"]["op"] == 200
    assert rows["functions"]["op"] == 0
    assert rows["functions"]["frame"] >= 400


@with_torch
def test_what_was_measured_is_read_with_the_run(measured: Run) -> None:
    recorder_overhead = read_run(measured.folder).recorder_overhead
    assert recorder_overhead is not None
    raw = measured.facts["recorder_overhead"]
    assert recorder_overhead.op == (raw["op"]["plain_ns"], raw["op"]["overhead_ns"])
    assert (recorder_overhead.stacks, recorder_overhead.call) == (True, None)


@with_torch
def test_a_python_that_cannot_measure_costs_one_line_and_no_status(
    tmp_path: Path,
) -> None:
    tell = "import sys; sys.executable = '/bin/false'\n"
    run = collect_program(tmp_path, tell + LOOP + STEPS, MEASURING)
    (entry,) = run.facts["missing"]
    assert run.status == 0
    assert run.facts["recorder_overhead"] is None
    assert entry == {"what": "recorder_overhead", "why": "exit status 1"}


def test_a_measurement_that_hangs_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "hangs.py"
    script.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(overhead, "SCRIPT", script)
    monkeypatch.setattr(overhead, "TIMEOUT_S", 0.5)
    child = overhead.start(sys.executable, RANK, tmp_path / "out")
    assert overhead.wait(child) == "it took more than 0 s"
    assert child.returncode is not None


RANK = {
    "name": "rank-0",
    "device": "cpu",
    "environment": {},
    "trace": {"stacks": True, "shapes": True, "memory_events": False},
}


@pytest.mark.parametrize(
    ("ended", "rank", "python", "why"),
    [
        (None, RANK, sys.executable, ""),
        ("SIGTERM", RANK, sys.executable, "SIGTERM ended the program"),
        (None, {**RANK, "trace": None}, sys.executable, "there is no trace"),
        (None, RANK, "/gone/python", "the Python that the program ran in is not known"),
        (
            None,
            {**RANK, "local_rank": 3},
            sys.executable,
            "the launcher of local rank 0 measures it",
        ),
    ],
)
def test_when_nothing_is_measured(
    ended: str | None, rank: dict[str, Any], python: str, why: str
) -> None:
    assert overhead.why_not({"signal": ended}, rank, python) == why


@with_torch
def test_costs_are_those_that_the_times_are_made_of() -> None:
    rows = [(400, 0, 0), (100, 300, 0), (200, 200, 200), (500, 400, 100)]
    table = {
        f"work {number}": {
            "frame": frames,
            "op": ops,
            "call": calls,
            "plain_ns": frames * 50 + ops * 2000 + calls * 1500,
            "recorded_ns": frames * 550 + ops * 6000 + calls * 4000,
        }
        for number, (frames, ops, calls) in enumerate(rows)
    }
    assert measure.costs(table) == {
        "frame": {"plain_ns": 50, "overhead_ns": 500},
        "op": {"plain_ns": 2000, "overhead_ns": 4000},
        "call": {"plain_ns": 1500, "overhead_ns": 2500},
    }


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        {"version": 2, "op": {"plain_ns": 1, "overhead_ns": 1}},
        {"version": 1},
        {"version": 1, "op": {"plain_ns": -1, "overhead_ns": 1}},
        {"version": 1, "op": {"plain_ns": "1", "overhead_ns": 1}},
        {"version": 1, "op": {"plain_ns": 1, "overhead_ns": 10**12}},
        {"version": 1, "stacks": True, "op": {"plain_ns": 1, "overhead_ns": 1}},
    ],
)
def test_costs_that_make_no_sense_are_left_out(broken: object, tmp_path: Path) -> None:
    content = {"format": 1, "command": [], "recorder_overhead": broken}
    (tmp_path / "run.json").write_text(json.dumps(content))
    assert read_run(tmp_path).recorder_overhead is None
