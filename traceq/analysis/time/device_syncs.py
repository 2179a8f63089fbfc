"""Where a program waits for the GPU, and how long the GPU idles after each sync."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import (
    COPY_SYNC_NS,
    LITTLE_LAUNCHED,
    PAGEABLE_COPY_BYTES,
    SHORT_OP_SYNC_US,
    SHORT_PROGRAM_SYNC_US,
)
from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.gpu_idle import gap_at, idle_gaps
from traceq.analysis.base.ownership import inside, named_like
from traceq.analysis.base.steady import in_steps
from traceq.analysis.base.sync_calls import (
    DEVICE_SYNCS,
    SYNC,
    TO_GPU,
    blocking_calls,
    copy_directions,
)
from traceq.analysis.patterns.compilation import all_captures
from traceq.analysis.patterns.host_collectives import serves_collective
from traceq.expressions import END, asof, text

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.trace import Trace

_METHOD = r"^<built-in (?:method|function) (\w+)"
_PRINTING = r"torch/_tensor_str\.py\(\d+\): _str$"
_PLACE = ("step", "phase", "thread", "file", "line", "function", "via", "module")


@cached_per_trace
def device_syncs(trace: Trace) -> pl.DataFrame:
    """Return the syncs of a trace: one row for each op that syncs, or call outside ops.

    ``id`` and ``name`` are of the first blocking call, ``op`` is the innermost op;
    ``ts`` and ``end`` span its blocking calls, ``wait`` is the time in them, ``gap``
    how long the GPU idles then, ``copies`` is TO_HOST or TO_GPU if the op copies. Left
    out are syncs while compiling or capturing CUDA graphs, those of the allocator or at
    the end of a copy from pageable memory, those of collectives through the host, and
    the one with which the profiler ends.
    """
    calls = blocking_calls(trace).filter(pl.col("kind").is_in(DEVICE_SYNCS))
    if not calls.height:
        nothing = pl.lit(None, pl.String)
        return calls.select(
            *("id", "name", "op", "ts", *_PLACE),
            wait="dur",
            end=END,
            copies=nothing,
            gap=pl.lit(0, pl.Int64),
        )
    found = pl.concat(
        [_by_op(trace, calls), _outside_ops(trace, calls)], how="diagonal"
    )
    found = found.filter(~serves_collective(trace, found))
    return _with_gap(trace, found.sort("ts", "id"))


def waits_long() -> pl.Expr:
    """Return whether a sync waits long enough for reports to count it."""
    in_op = pl.col("op").is_not_null()
    shortest_us = pl.when(in_op).then(SHORT_OP_SYNC_US).otherwise(SHORT_PROGRAM_SYNC_US)
    return pl.col("wait") >= shortest_us * 1000


def syncs_in_ops(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the syncs of the steps that operators make."""
    found = device_syncs(trace).filter(pl.col("op").is_not_null())
    return in_steps(found, trace, steady)


def syncs_outside_ops(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the syncs of the steps that the program makes itself, outside of ops."""
    found = device_syncs(trace).filter(pl.col("op").is_null())
    return in_steps(found, trace, steady)


def _by_op(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each op that syncs on its own account."""
    return (
        calls.filter(pl.col("op").is_not_null())
        .sort("ts")
        .group_by("op", maintain_order=True)
        .agg(
            pl.col("id", "name", "ts", *_PLACE).first(),
            wait=pl.col("dur").sum(),
            end=END.max(),
        )
        .join(_directions(trace), on="op", how="left", maintain_order="left")
        .join(_explained_ops(trace), on="op", how="anti", maintain_order="left")
        .filter((pl.col("wait") >= COPY_SYNC_NS) | pl.col("copies").ne_missing(TO_GPU))
    )


def _directions(trace: Trace) -> pl.DataFrame:
    """Return the ops that copy between host and GPU: ``op`` and ``copies``."""
    copies = copy_directions(trace).drop_nulls("direction").sort("launch")
    return (
        copies.select("direction", op=trace.runtime["op"][copies["launch"]])
        .drop_nulls("op")
        .group_by("op")
        .agg(copies=pl.col("direction").first())
    )


def _outside_ops(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the sync calls outside of ops on threads that launch work afterwards.

    Nothing is launched after the one with which the profiler ends.
    """
    launches = trace.runtime[["thread", "ts"]].filter(trace.runtime["kernels"] > 0)
    last = launches.group_by("thread").agg(last=pl.col("ts").max())
    return (
        calls.filter(pl.col("op").is_null(), pl.col("kind") == SYNC)
        .join(last, on="thread", maintain_order="left")
        .filter(pl.col("ts") < pl.col("last"))
        .select("id", "name", "op", "ts", *_PLACE, wait="dur", end=END)
    )


@cached_per_trace
def sync_chains(trace: Trace) -> pl.DataFrame:
    """Return the syncs with their ``chain``, and whether each is the ``longest`` in it.

    Little is launched between those of a chain: the next one waits instead of one that
    is removed, so that only removing all of them makes the host run ahead.
    """
    syncs = device_syncs(trace).sort("thread", "ts", "id")
    launched = trace.kernels.select(
        "dur", at=trace.runtime["ts"][trace.kernels["launch"]]
    ).drop_nulls()
    launched = launched.sort("at")
    total = pl.concat([pl.Series([0]), launched["dur"].cum_sum()])
    begun, ended = (
        total[launched["at"].search_sorted(syncs[side])] for side in ("ts", "end")
    )
    before = pl.col("ended").shift(1).over("thread")
    longer = pl.max_horizontal("wait", pl.col("wait").shift(1).over("thread"))
    apart = pl.col("begun") - before >= LITTLE_LAUNCHED * longer
    return (
        syncs.with_columns(begun=begun, ended=ended)
        .with_columns(chain=apart.fill_null(value=True).cum_sum())
        .with_columns(
            longest=pl.col("wait").arg_max().over("chain")
            == pl.int_range(pl.len()).over("chain")
        )
        .drop("begun", "ended")
    )


def written_as(trace: Trace, syncs: pl.DataFrame) -> pl.Series:
    """Return the method that Python called for each sync, as ``tolist``, if known.

    It is ``print`` for all that printing a tensor does.
    """
    frames = trace.frames
    found = syncs.select("ts", "end", "thread").with_row_index("row")
    for pattern in (_PRINTING, _METHOD):
        # Calls of threads that never sync are not looked at.
        chosen = named_like(frames, pattern)
        if chosen.any():
            chosen &= frames["thread"].is_in(syncs["thread"].unique().implode())
        calls = frames[["name", "thread", "ts", "dur"]].filter(chosen)
        # Half of all frames may be such calls: methods are told of those at a sync.
        calls = calls.select("thread", "ts", until=END, call="name")
        found = asof(found, calls, "ts", "ts", by="thread", suffix="_inner")
    prints, calls_one = (
        pl.col(until) >= pl.col("end") for until in ("until", "until_inner")
    )
    method = text("call_inner").str.extract(_METHOD)
    return (
        found.sort("row")
        .select(pl.when(prints).then(pl.lit("print")).when(calls_one).then(method))
        .to_series()
    )


def _explained_ops(trace: Trace) -> pl.DataFrame:
    """Return the ops whose syncs belong to something else that they do: ``op``."""
    ops, runtime = trace.ops, trace.runtime
    around = inside(trace, all_captures(trace)["id"])
    other = ops[["id"]].filter(around.is_not_null() | ops["compiling"]).select(op="id")
    allocating = runtime[["op"]].filter(runtime["call"] == "allocation")
    large = copy_directions(trace).filter(
        "pageable",
        pl.col("direction") == TO_GPU,
        pl.col("bytes") >= PAGEABLE_COPY_BYTES,
    )
    copying = runtime[["op"]][large["launch"]]
    return pl.concat([other, allocating, copying]).drop_nulls().unique()


def _with_gap(trace: Trace, found: pl.DataFrame) -> pl.DataFrame:
    """Add how long the GPU idles from a sync on; a gap belongs to its first sync."""
    gaps = idle_gaps(trace)
    row = gap_at(gaps, found["end"])
    since = pl.select(pl.max_horizontal(gaps["start"][row], found["ts"])).to_series()
    idle = gaps["end"][row] - since
    first = row.is_first_distinct() & row.is_not_null()
    return found.with_columns(
        gap=pl.select(pl.when(first).then(idle).otherwise(0)).to_series()
    )
