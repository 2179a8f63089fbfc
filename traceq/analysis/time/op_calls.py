"""Dispatch cost of operator calls on the host, and its excess over the usual cost.

The usual cost of a call is that of equal calls: the same operator on the same inputs,
with as many ops inside and as much work for the GPU. If no other call is equal, it is
that of all calls of the operator on inputs that were seen before. An operator that
launches nothing on the GPU computes on the host, and its time depends on the size of
its tensors: it is compared with calls on the same inputs only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import (
    EXCESS_FACTOR,
    EXCESS_NS,
    SEEN_PLANNED_CALLS,
    USUAL_PLANNED_OP_NS,
)
from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.gpu_idle import idle_gaps
from traceq.analysis.base.group_ids import alike, counted
from traceq.analysis.base.ownership import named_like
from traceq.analysis.base.profiler_overhead import recorder_stalls
from traceq.analysis.time.host_segments import host_segments
from traceq.common.expressions import constant, known, rows_where
from traceq.common.intervals import count_before, overlap
from traceq.graph.nesting import sums_of

if TYPE_CHECKING:
    from traceq.model.trace import Trace

# Ops for which a library chooses an algorithm, or makes a plan, for each new shape.
PLANNED = (
    r"^aten::(add|b|badd)?mm$|^aten::_(scaled|grouped)_mm$"
    r"|^aten::(cudnn|miopen|slow|thnn|mkldnn)?_?conv|^aten::_cudnn_attention"
    r"|^aten::_fft_"
)
# The profiler's name for loading a kernel's code at its first use.
_LAZY_LOADING = "Lazy Function Loading"
# Calls with which the code of a kernel is loaded when it is first launched.
_LOADS = r"^cu(da)?(LibraryLoad|ModuleLoad)"
# Columns that are equal for calls that do the same.
_SAME = ("name", "inputs", "children", "started")
_OF_OP = ("name", "step", "inputs", "children")


@cached_per_trace
def op_calls(trace: Trace) -> pl.DataFrame:
    """Return the operator calls of the steady-state steps.

    ``op``, ``name``, ``own`` (time in no other op, launches aside), ``usual``,
    ``excess`` (0 unless it is far beyond the usual), ``idle``, ``new`` (the first use
    of this op on these inputs, as far as can be told), ``planned`` and ``loads`` (code
    of a kernel).
    """
    segments, ops = own_segments(trace), trace.ops.height
    op, own = segments["op"], sums_of(segments["op"], segments["own"], ops)
    kernels = trace.runtime["kernels"].cast(pl.Int64)
    every = pl.DataFrame(
        {
            **{column: trace.ops[column] for column in _OF_OP},
            "own": own,
            "idle": sums_of(op, segments["idle"], ops),
            "loads": _marked(op.filter(segments["loads"]), ops),
            "started": sums_of(trace.runtime["op"], kernels, ops),
            "new": _marked(_on_new_inputs(trace), ops),
            "planned": named_like(trace.ops, PLANNED),
        }
    )
    op_rows = rows_where(own > 0)
    calls = every[op_rows]
    calls = calls.hstack([_usual(trace, calls, op_rows).alias("usual")])
    excess = calls["own"] - calls["usual"]
    far = calls["own"] > (EXCESS_FACTOR * calls["usual"]).clip(lower_bound=EXCESS_NS)
    excess = excess.zip_with(far, pl.Series([0]))
    planned = calls["planned"] | _seen_planned(calls, excess > 0)
    return calls[["own", "usual", "idle", "new", "loads"]].hstack(
        [
            op_rows.alias("op"),
            calls["name"].cast(pl.String),
            excess.alias("excess"),
            planned.alias("planned"),
        ]
    )


def _marked(chosen: pl.Series, ops: int) -> pl.Series:
    """Return for each of this many ops whether it is among these."""
    nobody = constant(value=False, count=ops, dtype=pl.Boolean)
    return nobody.scatter(chosen, values=True) if len(chosen) else nobody


def _usual(trace: Trace, calls: pl.DataFrame, op_rows: pl.Series) -> pl.Series:
    """Return the usual cost of each call; ``op_rows`` are the ops of the calls."""
    again = pl.col("own").filter(~pl.col("new")).median().over("name")
    assumed = pl.when("planned").then(pl.lit(USUAL_PLANNED_OP_NS))
    usual = calls.select(usual=pl.coalesce(again, assumed, "own").cast(pl.Int64))
    # Few ops have a call that can be slow: what does the same is asked of these alone.
    long = calls["name"].filter(calls["own"] > EXCESS_NS).unique()
    if not len(long):
        return usual["usual"]
    rows = rows_where(calls["name"].is_in(long.implode()))
    slow_calls = calls[rows]
    same = alike(*(slow_calls[column] for column in _SAME)).number
    slow_calls = slow_calls.hstack(
        [usual["usual"][rows], same.alias("same"), on_host(trace, op_rows[rows])]
    )
    usual_of = pl.coalesce(_unsized(), _of_the_same(), _alone(), "usual")
    expected = slow_calls.select(usual_of.cast(pl.Int64)).to_series()
    return usual["usual"].scatter(rows, expected)


def on_host(trace: Trace, ops: pl.Series) -> pl.Series:
    """Return for each of these ops whether it asks nothing of the GPU, as ``host``."""
    spans, calls = trace.ops[["ts", "dur"]][ops], trace.runtime["ts"].sort()
    before = count_before(calls, spans["ts"])
    return (count_before(calls, spans["ts"] + spans["dur"]) == before).alias("host")


def _unsized() -> pl.Expr:
    """Return the own time of a call on the host whose size is not known."""
    return pl.when("host", pl.col("inputs").is_null()).then("own")


def _of_the_same() -> pl.Expr:
    """Return the median cost of calls that do the same; none if there is no other.

    A plan takes as long on all new inputs, and without it the size matters little: all
    calls of the operator say better what is usual than few on the same inputs.
    """
    # Ops that compute on the host are not slower the first time.
    again = ~pl.col("new") | (pl.col("host") & ~pl.col("planned"))
    others = again.sum().over("same") - again.cast(pl.UInt32)
    # Of two the shorter, as one of them may be slow.
    usual = pl.col("own").filter(again).quantile(0.5, "lower").over("same")
    return pl.when(others > 0, again | ~pl.col("planned")).then(usual)


def _alone() -> pl.Expr:
    """Return the own time of a call on the host that is the only one of its size."""
    return pl.when("host", ~pl.col("planned")).then("own")


def _on_new_inputs(trace: Trace) -> pl.Series:
    """Return the ops that are the first on their inputs.

    In the first step of a recording every call is the first that is seen. Its inputs
    count as new only if later steps of it bring new ones too, or there are none.
    """
    name, step = pl.col("name"), pl.col("step")
    ops = trace.host_ops[["id", "ts", "name", "step", "inputs"]]
    steps = (
        ops[["name", "step"]].group_by("name").agg(begun=step.min(), ended=step.max())
    )
    # Few are the first: only of these it is asked what later steps bring.
    with_inputs = ops.filter(ops["inputs"].is_not_null())
    first = with_inputs[_first_in_time(with_inputs)].join(steps, on="name")
    brings_new = first.filter(step > pl.col("begun"))["name"].unique()
    has_later = known(pl.col("ended") > pl.col("begun"))
    return first.filter(name.is_in(brings_new.implode()) | ~has_later)["id"]


def _first_in_time(ops: pl.DataFrame) -> pl.Series:
    """Return which ops are the first of their name on their inputs."""
    # Name and inputs as one number, which is faster to compare than both.
    both = ops["name"].to_physical().cast(pl.UInt64) * 2**32 + ops["inputs"]
    number, first = counted(both)
    # Ops are by thread: few are before the first one of a thread before theirs.
    earlier = rows_where(ops["ts"] < ops["ts"][first][number])
    others = (
        pl.DataFrame([number[earlier], ops["ts"][earlier], earlier], ["of", "ts", "op"])
        .sort("ts", maintain_order=True)
        .unique("of", keep="first")
    )
    return first.scatter(others["of"], others["op"])


def _lazily_loaded(trace: Trace, segments: pl.DataFrame) -> pl.Series:
    """Return for each segment whether code of a kernel was loaded in it."""
    loaded = trace.other["ts"].filter(known(trace.other["name"] == _LAZY_LOADING))
    if not len(loaded):
        return constant(value=False, count=segments.height, dtype=pl.Boolean)
    loaded = loaded.sort()
    before, until = (count_before(loaded, segments[side]) for side in ("start", "end"))
    return until > before


def _seen_planned(calls: pl.DataFrame, slow: pl.Series) -> pl.Series:
    """Return which calls are of ops that are slow on new shapes, and on these alone."""
    slow_names = calls["name"].filter(slow & calls["new"])
    if len(slow_names) < SEEN_PLANNED_CALLS:
        return constant(value=False, count=calls.height, dtype=pl.Boolean)
    rows = rows_where(calls["name"].is_in(slow_names.unique().implode()))
    new, slow_new = pl.col("new"), pl.col("slow") & pl.col("new")
    seen = (
        (slow_new.sum() >= SEEN_PLANNED_CALLS)
        & (pl.col("step").filter(slow_new).n_unique() > 1)
        & (slow_new.sum() > new.sum() / 2)
        & ((pl.col("slow") & ~new).sum() < (~new).sum() / 10)
    )
    candidates = calls[["name", "step", "new"]][rows].hstack([slow[rows].alias("slow")])
    planned = candidates.select(seen.over("name")).to_series()
    return _marked(rows.filter(planned), calls.height)


@cached_per_trace
def own_segments(trace: Trace) -> pl.DataFrame:
    """Return the host's time in ops themselves: ``start``, ``end``, ``idle``, ``op``.

    What an op asks of the runtime before it launches is its own time: ``own``, without
    what the profiler held it up. ``loads`` is whether code of a kernel was loaded then.
    """
    host = host_segments(trace)
    contexts, segments = host.contexts, host.segments
    call = contexts.rows_of("runtime")
    asks = known((trace.runtime["call"] == "other")[call]) & contexts.op.is_not_null()
    own = contexts.rows_of("ops").is_not_null() | asks
    loads = known(named_like(trace.runtime, _LOADS)[call])
    at_ops = segments.filter(host.in_contexts(own))
    length = at_ops["end"] - at_ops["start"]
    return at_ops.select(
        "start",
        "end",
        own=length - overlap(at_ops, recorder_stalls(trace)),
        idle=overlap(at_ops, idle_gaps(trace)),
        op=host.op[at_ops["at"]],
        loads=loads[contexts.number[at_ops["at"]]] | _lazily_loaded(trace, at_ops),
    )
