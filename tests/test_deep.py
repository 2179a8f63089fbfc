"""Rows that are nested deeper than in any program are left out, and reported."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from command import traceq

from traceq.graph.deep import MOST
from traceq.graph.nesting import depth
from traceq.inputs.load_trace import load

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]
KINDS = {
    "ops": {"cat": "cpu_op", "name": "aten::add"},
    "annotations": {"cat": "user_annotation", "name": "region"},
    "frames": {"cat": "python_function", "name": "nn.Module: Block_0"},
    "runtime": {"cat": "cuda_runtime", "name": "cudaLaunchKernel"},
}


def nested(count: int, **event: object) -> list[Event]:
    return [
        {"ph": "X", "pid": 1, "tid": 1, "ts": at, "dur": 2 * count - 2 * at, **event}
        for at in range(count)
    ]


def written(folder: Path, events: list[Event]) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


@pytest.mark.parametrize("table", KINDS)
def test_what_lies_too_deep_is_left_out_and_reported(
    table: str, tmp_path: Path
) -> None:
    leaf: Event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 2}
    leaf |= {"ts": 5, "dur": 1}
    path = written(tmp_path, [leaf, *nested(3 * MOST, **KINDS[table])])

    trace = load(path, cache=False)

    left = getattr(trace, table).height - (table == "ops")
    assert MOST <= left <= MOST + 64
    (said,) = trace.facts.damage
    assert said == (
        f"{3 * MOST - left:,} events are nested deeper than {MOST}, and left out"
    )


def test_calls_stay_where_what_is_around_them_is_left_out(tmp_path: Path) -> None:
    depth_ = 3 * MOST
    call: Event = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel"}
    call |= {"pid": 1, "tid": 1, "ts": depth_, "dur": 0.5, "args": {"correlation": 1}}
    kernel: Event = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7}
    kernel |= {"ts": depth_ + 1, "dur": 5, "args": {"stream": 7, "correlation": 1}}
    path = written(tmp_path, [*nested(depth_, **KINDS["ops"]), call, kernel])

    trace = load(path, cache=False)

    assert trace.runtime.height == 1
    assert trace.kernels["op"].to_list() == [MOST - 1]


def test_nothing_is_left_out_of_what_a_program_nests(tmp_path: Path) -> None:
    path = written(tmp_path, nested(MOST, **KINDS["ops"]))

    trace = load(path, cache=False)

    assert trace.ops.height == MOST
    assert not trace.facts.damage


@pytest.mark.parametrize("command", ["summary", "lint"])
def test_a_command_reports_what_was_left_out(command: str, tmp_path: Path) -> None:
    path = written(tmp_path, nested(2 * MOST, **KINDS["ops"]))

    answer = traceq(command, path, "--no-cache")

    assert f"{MOST:,} events are nested deeper than {MOST}" in answer.out + answer.err


@pytest.mark.parametrize("pure", ["", "1"])
def test_depths_are_those_of_the_reference(
    pure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEQ_PURE", pure)

    column = depth(pl.Series([None, 0, 1, 0, None, 4, 5, 5], dtype=pl.UInt32))

    assert column.to_list() == [0, 1, 2, 1, 0, 1, 2, 2]


@pytest.mark.parametrize("pure", ["", "1"])
def test_depths_of_rows_before_those_around_them_are_found_too(
    pure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEQ_PURE", pure)

    column = depth(pl.Series([2, None, 1], dtype=pl.UInt32))

    assert column.to_list() == [2, 0, 1]
