"""Captures of CUDA graphs, each profiled on its own.

Without a GPU nothing is captured: the methods of torch that every capture goes through
are called around ops of the CPU, which are recorded.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from collecting import LOOP, QUICK, WITH_TORCH, Run, collect_program

pytestmark = WITH_TORCH

GRAPHS = """
import torch
for name in ("capture_begin", "capture_end"):
    setattr(torch._C._CUDAGraph, name, lambda self, **_: None)
class Graph(torch.cuda.CUDAGraph):
    def __new__(cls):
        return object.__new__(cls)
    def __init__(self):
        self._tracker = None
def captured(function):
    graph = Graph()
    graph.capture_begin()
    function()  # CALL
    graph.capture_end()
def first():
    return torch.ones(3).cos()  # COS
"""

PROGRAM = f"""
{GRAPHS}
{LOOP}
def broken():
    raise ValueError
captured(first)
captured(lambda: torch.ones(3).tan())
with torch.profiler.profile():
    captured(lambda: torch.ones(3).exp())
try:
    captured(broken)
except ValueError:
    pass
for i in range(30):
    step()
    if i == 1:
        captured(lambda: torch.ones(3).erf())
print(torch.cuda.CUDAGraph.capture_begin.__qualname__)
print(getattr(torch.cuda.CUDAGraph.capture_begin, "__wrapped__", "as it was"))
"""

MANY = f"""
{GRAPHS}
{LOOP}
for _ in range(66):
    captured(first)
for _ in range(20):
    step()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return collect_program(tmp_path_factory.mktemp("captures"), PROGRAM)


def events(run: Run, number: int) -> list[dict[str, Any]]:
    with gzip.open(run.folder / run.rank["captures"][number]["file"]) as stream:
        result: list[dict[str, Any]] = json.load(stream)["traceEvents"]
    return result


def ops(run: Run) -> list[set[str]]:
    """Return which of the ops that the captures differ in each of them has."""
    telling = {"aten::cos", "aten::tan", "aten::exp", "aten::erf"}
    return [
        {event["name"] for event in events(run, number)} & telling
        for number in range(len(run.rank["captures"]))
    ]


def test_each_capture_has_its_ops_in_the_order_of_capture(run: Run) -> None:
    assert run.rank["state"] == "done"
    assert ops(run) == [{"aten::cos"}, {"aten::tan"}, {"aten::erf"}]
    assert [capture["file"] for capture in run.rank["captures"]] == [
        f"rank-0.capture-{number}.json.gz" for number in range(3)
    ]


def test_ops_of_a_capture_have_the_lines_of_the_program(run: Run) -> None:
    lines = PROGRAM.splitlines()
    (cos,) = (number for number, text in enumerate(lines, 1) if "# COS" in text)
    callers = {
        event["caller"]
        for event in events(run, 0)
        if "method cos" in event.get("name", "")
    }
    assert callers == {f"program.py({cos}): first"}


def test_a_capture_that_fails_is_left_out_and_said(run: Run) -> None:
    assert run.status == 0
    assert "before its end" in run.why_missing("further captures of CUDA graphs")


def test_the_steps_are_timed_when_no_more_graphs_are_captured(run: Run) -> None:
    assert run.rank["warmup"]["steps"] > 2 + 2


def test_the_methods_are_given_back(run: Run) -> None:
    assert run.out.split("\n")[:2] == ["CUDAGraph.capture_begin", "as it was"]


def test_captures_beyond_the_limit_are_said_to_be_missing(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    many = collect_program(tmp_path_factory.mktemp("many"), MANY)

    assert len(many.rank["captures"]) == 64
    assert "64" in many.why_missing("further captures of CUDA graphs")
    assert many.rank["trace"]["stacks"]


def test_none_is_profiled_if_told_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("none")
    none = collect_program(folder, PROGRAM, (*QUICK, "--no-captures"))

    assert none.rank["captures"] == []
    assert not any("capture" in name for name in none.files)
