"""The account of the host: every nanosecond of a step belongs to one entry."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl
import pytest
from command import traceq
from recordings import ROOT

from traceq import load
from traceq.analysis.replay.host_account import (
    DISPATCH,
    NEW_SHAPE,
    PYTHON,
    SYNC,
    HostAccount,
    host_account,
)
from traceq.analysis.time.host_segments import host_segments
from traceq.lint import View, inputs
from traceq.testing.timeline import load_drawn

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.trace import Trace

STEP = """
    host   [ProfilerStep#1                                                       ]
    host    [train.py(3): main                                                  ]
    host     [aten::mm           ]       [aten::item                 ]
    host      [cudaLaunchKernel>1]        [cudaStreamSynchronize     ]
    gpu 7                  [gemm<1                              ]
"""
BACKWARD = """
    host   [ProfilerStep#1                                                       ]
    host    [train.py(3): main                                                  ]
    host     [<built-in method run_backward                                    ]
    host 2      [MmBackward0        ]     [AddBackward0         ]
    host 2       [cudaLaunchKernel>1]      [cudaLaunchKernel>2  ]
    gpu 7                         [gemm<1   ]            [add<2    ]
"""


def account(trace: Trace) -> HostAccount:
    view = View(trace)
    return host_account(trace, view.replay, view.calibration.likely)


def kind(found: HostAccount, name: str) -> int:
    return round(found.kinds.filter(pl.col("kind") == name)["recorded"].sum())


def test_segments_of_a_drawn_step_add_up_to_it() -> None:
    trace = load_drawn(STEP)

    segments = host_segments(trace).segments

    assert (segments["end"] - segments["start"]).sum() == trace.steps["dur"].sum()


def test_an_instant_belongs_to_the_innermost_call() -> None:
    found = account(load_drawn(STEP))

    # A character is a microsecond: each op is one longer than the call inside it.
    assert kind(found, "launches") == 20_000
    assert kind(found, SYNC) == 28_000
    assert kind(found, DISPATCH) == 2_000


def test_python_has_what_is_in_no_operator() -> None:
    found = account(load_drawn(STEP))

    (own,) = found.entries.filter(pl.col("kind") == PYTHON).iter_rows(named=True)
    assert (own["name"], own["file"], own["line"]) == ("main", "train.py", 3)
    assert own["recorded"] == found.entries["recorded"].sum() - sum(
        kind(found, name) for name in ("launches", SYNC, DISPATCH, "unknown")
    )


def test_while_backward_runs_in_its_thread_the_main_thread_only_waits() -> None:
    trace = load_drawn(BACKWARD)

    found = account(trace)

    assert found.entries["recorded"].sum() == trace.steps["dur"].sum()
    assert kind(found, "launches") == 20_000 + 22_000
    assert kind(found, "autograd engine") > 0


CHURN = f"""
    host   [ProfilerStep#1 {" " * 560}]
    host    [aten::mm           ]    [aten::bmm {" " * 480}]
    host     [cudaLaunchKernel>1]     [cudaLaunchKernel>2]
    gpu 7                 [gemm<1]                  [gemm<2]
"""


def test_a_first_call_far_beyond_the_usual_is_of_a_new_shape() -> None:
    shape = inputs([[317, 64], [64, 64]], ["c10::BFloat16"] * 2)
    found = account(load_drawn(CHURN, {"aten::mm": shape, "aten::bmm": shape}))

    slow = found.calls.filter(pl.col("excess") > 0)
    assert slow["name"].to_list() == ["aten::bmm"]
    assert kind(found, NEW_SHAPE) > 400_000


def test_the_account_of_a_real_trace_adds_up_to_its_steps(fixture_trace: Path) -> None:
    trace = load(fixture_trace)

    found = account(trace)

    steps = trace.steps.filter(~pl.col("warmup"))
    assert found.entries["recorded"].sum() * found.steps == pytest.approx(
        steps["dur"].sum(), rel=1e-9
    )
    assert found.entries["idle"].sum() <= found.entries["recorded"].sum()
    assert (found.entries["recorded"] >= 0).all()


def test_a_trace_without_stacks_has_an_account_too() -> None:
    drawing = "\n".join(line for line in STEP.splitlines() if "train.py" not in line)

    found = account(load_drawn(drawing))

    assert kind(found, DISPATCH) == 2_000
    assert kind(found, "unknown") > 0


def test_the_waits_of_moe_loop_are_no_work_of_the_host() -> None:
    trace = load(ROOT / "fixtures/twins/moe_loop/trace.json.gz", cache=False)

    found = account(trace)

    assert 0 < kind(found, SYNC) < kind(found, DISPATCH)


def test_summary_prints_the_account_and_its_json_adds_up() -> None:
    path = ROOT / "fixtures/twins/moe_loop/trace.json.gz"

    text = traceq("summary", path, "--host").out
    found = json.loads(traceq("summary", path, "--host", "--format", "json").out)

    (one,) = found["traces"]
    kinds, entries = (
        sum(row["recorded"] for row in one["host"][key]) for key in ("kinds", "entries")
    )
    assert "Time of the host" in text
    assert "Largest entries" in text
    assert kinds == pytest.approx(entries) == pytest.approx(one["steps"][0]["dur"])
