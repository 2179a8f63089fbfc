"""Host stalls that the profiler itself causes, where the trace shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import GRAPH_LAUNCH_SLOWDOWN
from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.ownership import called_by_its_like
from traceq.common.expressions import END, known, text
from traceq.common.intervals import count_before, count_until, spans

if TYPE_CHECKING:
    from traceq.model.trace import Trace

_CATEGORY = "overhead"
# Of what CUPTI calls overhead, what is its own: loading kernels is the program's.
_OF_THE_PROFILER = (
    *("Activity Buffer Request", "Buffer Flush", "Instrumentation", "Resource"),
    "UVM Activity Init",
)
# Some ops call themselves for another dtype. Heuristic threshold.
_FEWEST_TRANSFORMED = 3


def recorder_keeps(trace: Trace) -> bool:
    """Return whether the profiler keeps tensors in memory until it ends.

    If shapes are recorded, it keeps those that ``vmap`` and ``grad`` of torch.func
    wrap. These call each op again inside of itself, once for each transform and more.
    """
    if not trace.facts.shapes:
        return False
    again = called_by_its_like(trace)
    twice = again & known(again[trace.ops["parent"]])
    return trace.ops["name"].filter(twice).n_unique() >= _FEWEST_TRANSFORMED


@cached_per_trace
def recorder_stalls(trace: Trace) -> pl.DataFrame:
    """Return the host's stalls caused by the profiler: ``start`` and ``end``.

    Where the profiler records that, and while it prepares the kernels of CUDA graphs.
    """
    graphs = graph_launches(trace).select(start="done", end="end")
    return pl.concat([recorder_overhead(trace), graphs])


@cached_per_trace
def graph_launches(trace: Trace) -> pl.DataFrame:
    """Return the launches of CUDA graphs: ``start``, ``end`` and ``done``.

    Without the profiler they were done then; it prepares each kernel that it records.
    """
    calls = trace.runtime.filter(
        pl.col("call") == "graph launch", pl.col("kernels") > 0
    )
    # By how much other profilers slow them down is unknown.
    slowdown = 1.0 if trace.facts.recorder else GRAPH_LAUNCH_SLOWDOWN
    own = (pl.col("dur") / slowdown).round().cast(pl.Int64)
    return calls.select(start="ts", end=END, done=pl.col("ts") + own)


@cached_per_trace
def recorder_overhead(trace: Trace) -> pl.DataFrame:
    """Return the host's stalls that the profiler itself recorded.

    They name no thread: where an operator or a call begins meanwhile, the one that
    launches was not held up.
    """
    stalls = spans(
        trace.other.filter(
            text("category") == _CATEGORY, text("name").is_in(_OF_THE_PROFILER)
        )
    )
    if stalls.is_empty():
        return stalls
    begun = pl.concat([trace.host_ops["ts"], trace.runtime["ts"]]).sort()
    before = count_until(begun, stalls["start"])
    return stalls.filter(count_before(begun, stalls["end"]) == before)
