"""One step as a picture, and as a flame graph: the analyses behind them."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from recordings import FIXTURE_TRACES, loaded

from traceq.analysis.base.steady import steady_steps
from traceq.analysis.replay.bound import host_account_of
from traceq.analysis.time.flame import gpu_flame, host_flame
from traceq.analysis.time.gpu_causes import COMPUTING
from traceq.analysis.time.idle_causes import (
    LAUNCHING,
    OPERATORS,
    PYTHON,
    causes_in,
    idle_stretches,
)
from traceq.analysis.time.timeline import described, timeline, typical_step
from traceq.testing import load_drawn

DRAWN = """
    host     [ProfilerStep#1                                                       ]
    host      [train.py(3): main                                                  ]
    host       [nn.Module: Net_0                      ]
    host        [aten::linear                        ]
    host         [aten::mm           ]  [aten::relu ]
    host          [cudaLaunchKernel>1]   [cudaLaunchKernel>2]
    gpu 7                                [gemm<1 ]            [relu<2              ]
"""
TRACES = ("copies", "graph_replay", "recompile")


def test_slices_are_as_deep_as_what_is_around_them() -> None:
    trace = load_drawn(DRAWN)

    table = described(trace, timeline(trace, 1).slices)

    depths = dict(table.filter(pl.col("lane") == 1).select("name", "depth").rows())
    assert depths["train.py(3): main"] == 0
    assert depths["nn.Module: Net_0"] == 1
    assert depths["aten::linear"] == 2
    assert depths["aten::mm"] == depths["aten::relu"] == 3
    assert depths["cudaLaunchKernel"] == 4


def test_lanes_are_streams_first_and_then_threads() -> None:
    lanes = timeline(load_drawn(DRAWN), 1).lanes

    assert lanes["gpu"].to_list() == [True, False]
    assert lanes["name"][0] == "stream 7"


def test_slices_tell_op_module_and_line() -> None:
    trace = load_drawn(DRAWN)

    table = described(trace, timeline(trace, 1).slices)
    gemm = table.row(by_predicate=pl.col("name") == "gemm", named=True)

    assert gemm["op"] == "aten::mm"
    assert gemm["module"] == "Net_0"
    assert (gemm["file"], gemm["function"]) == ("train.py", "main")
    assert gemm["cause"] == COMPUTING


@pytest.mark.parametrize("most", [50, 400])
@pytest.mark.parametrize("name", TRACES)
def test_runs_lose_no_slice_and_no_time(name: str, most: int) -> None:
    trace = loaded(FIXTURE_TRACES[name])
    step = typical_step(trace)
    whole, few = timeline(trace, step, 10**9), timeline(trace, step, most)

    assert whole.shortest == 0
    assert whole.slices["count"].max() == 1
    assert few.slices.height < whole.slices.height
    assert few.slices["count"].sum() == whole.slices.height
    assert few.slices["busy"].sum() == whole.slices["busy"].sum()
    long = few.slices.filter(pl.col("count") > 1)
    assert (long["end"] > long["start"]).all()


def test_the_step_nearest_to_the_median_is_typical() -> None:
    times = {1: 100, 2: 40, 3: 44, 4: 90}
    trace = load_drawn(DRAWN)
    steps = pl.concat(
        trace.steps.with_columns(
            step=pl.lit(number, pl.Int64),
            time=pl.lit(time, pl.Int64),
            warmup=pl.lit(value=number == 1),
        )
        for number, time in times.items()
    )

    assert typical_step(load_drawn("host [aten::mm]")) is None
    assert typical_step(replace(trace, steps=steps)) == 3


@pytest.mark.parametrize("name", TRACES)
def test_idle_stretches_add_up_to_the_idle_time_by_cause(name: str) -> None:
    trace = loaded(FIXTURE_TRACES[name])
    result = timeline(trace, typical_step(trace))
    gaps = result.gaps.select("start", "end")

    length = (pl.col("end") - pl.col("start")).sum()
    by_cause = dict(result.gaps.group_by("cause").agg(length).rows())

    assert (result.gaps["end"] > result.gaps["start"]).all()
    assert (result.gaps["start"][1:] >= result.gaps["end"][:-1]).all()
    assert by_cause == dict(causes_in(trace, gaps).rows())


def test_idle_time_has_the_cause_of_each_moment() -> None:
    trace = load_drawn(DRAWN)

    table = idle_stretches(trace, 4_000, 60_000)

    assert table.rows() == [
        (4_000, 5_000, OPERATORS),
        (5_000, 25_000, LAUNCHING),
        (25_000, 28_000, OPERATORS),
        (37_000, 48_000, LAUNCHING),
        (48_000, 49_000, PYTHON),
    ]


@pytest.mark.parametrize("name", TRACES)
def test_flames_add_up_to_the_time_of_a_step(name: str) -> None:
    trace = loaded(FIXTURE_TRACES[name])
    steady = steady_steps(trace)
    account = host_account_of(trace, None)
    segments = account.segments

    gpu = gpu_flame(trace, steady)
    host = host_flame(trace, segments, account.steps)

    assert gpu["time"].sum() == pytest.approx(
        steady.kernels["dur"].sum() / steady.count
    )
    recorded = (segments["end"] - segments["start"]).sum()
    assert host["time"].sum() == pytest.approx(recorded / account.steps)
    assert host["idle"].sum() == pytest.approx(segments["idle"].sum() / account.steps)


def test_a_path_goes_from_the_phase_to_the_op() -> None:
    trace = load_drawn(DRAWN)

    table = gpu_flame(trace, steady_steps(trace))

    paths = {path[-1]: path for path in table["path"].to_list()}
    line = "main (train.py:3)"
    assert paths["gemm"] == ["forward", "Net", line, "aten::mm", "gemm"]
    assert table["calls"].to_list() == [1, 1]
