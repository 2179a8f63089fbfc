"""Out of memory: lint of programs of benchmarks/oom that ran out on an H200."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from command import traceq as traceq_command

import traceq

if TYPE_CHECKING:
    from traceq.model.finding import Finding

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "tests" / "data" / "oom"
PROGRAMS = ROOT / "benchmarks" / "oom"
EXPECTED: dict[str, Any] = json.loads((PROGRAMS / "expected.json").read_text())


def failed_allocation(name: str) -> Finding:
    (outcome,) = traceq.lint(RECORDED / name, cache=False).report.outcomes
    (finding,) = [item for item in outcome.findings if item.code == "MEM010"]
    return finding


@pytest.mark.parametrize("name", EXPECTED)
def test_the_cause_and_the_line_are_right(name: str) -> None:
    score = runpy.run_path(str(PROGRAMS / "score.py"))["score"]
    ends = {"status": 1, "error": "OutOfMemoryError"}
    result = {"plain": ends, "recorded": ends, "fixed": {"status": 0}}
    scored = score(RECORDED / name, result, EXPECTED[name])
    assert (scored["cause"], scored["line"]) == (True, True)


def test_states_of_the_first_step_are_no_leak_although_activations_are_freed_then() -> (
    None
):
    (outcome,) = traceq.lint(RECORDED / "first_step", cache=False).report.outcomes
    assert "MEM003" not in {finding.code for finding in outcome.findings}


def test_activations_of_an_earlier_forward_are_not_what_a_layer_needs() -> None:
    data: Any = failed_allocation("earlier_forward").data
    assert data["missing_bytes"] + data["later_bytes"] < 4 << 30


def test_holes_smaller_than_a_page_are_no_case_for_expandable_segments() -> None:
    data: Any = failed_allocation("small_blocks").data
    changes = pl.DataFrame(data["changes"])
    expandable = changes.filter(change="expandable_segments")
    assert expandable["enough"].to_list() == [False]


def test_a_table_that_does_not_fit_is_no_batch() -> None:
    data: Any = failed_allocation("small_blocks").data
    changes = pl.DataFrame(data["changes"])
    assert "batch" not in changes["change"]


@pytest.mark.parametrize("name", ["forward", "leak", "fragmented", "small_blocks"])
def test_the_first_screen_begins_with_the_answer(name: str) -> None:
    lines = traceq_command("lint", RECORDED / name, "--no-cache", width=100).lines
    first = next(line for line in lines if line.startswith("MEM010"))
    top = [line.split("  ")[0] for line in lines[: lines.index(first)]]

    assert [item for item in top if item in ("asked", "held by")] == [
        "asked",
        "held by",
    ]
    assert {"fits with", "too little"} & {*top}


def test_what_was_requested_is_not_what_a_fix_saves() -> None:
    screen = traceq_command("lint", RECORDED / "forward", "--no-cache", width=100)

    assert "saves  where" not in screen.out
    assert "which holds" not in screen.out
