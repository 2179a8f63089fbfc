"""Syncs with the GPU in a program, and the GPU's idle time after each."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import (
    COPY_SYNC_NS,
    COPYING_SHARE,
    LITTLE_LAUNCHED,
    LONGEST_LAUNCH_LATENCY_NS,
    PAGEABLE_COPY_BYTES,
    SHORT_OP_SYNC_US,
    SHORT_PROGRAM_SYNC_US,
)
from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.gpu_idle import gap_at, idle_gaps
from traceq.analysis.base.ownership import inside, named_like, same_place
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
from traceq.common.expressions import END, asof, constant, known, rows_where
from traceq.common.intervals import overlap
from traceq.model.names import DTOH, PAGEABLE

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.model.trace import Trace

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
    syncs = pl.concat(
        [_by_op(trace, calls), _outside_ops(trace, calls)], how="diagonal"
    )
    syncs = syncs.filter(~serves_collective(trace, syncs))
    return _with_gap(trace, syncs.sort("ts", "id"))


def waits_long() -> pl.Expr:
    """Return whether a sync waits long enough for reports to count it."""
    in_op = pl.col("op").is_not_null()
    shortest_us = pl.when(in_op).then(SHORT_OP_SYNC_US).otherwise(SHORT_PROGRAM_SYNC_US)
    return pl.col("wait") >= shortest_us * 1000


def syncs_in_ops(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the syncs of the steps that operators make."""
    syncs = device_syncs(trace).filter(pl.col("op").is_not_null())
    return in_steps(syncs, trace, steady)


def syncs_outside_ops(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the syncs of the steps that the program makes itself, outside of ops."""
    syncs = device_syncs(trace).filter(pl.col("op").is_null())
    return in_steps(syncs, trace, steady)


@cached_per_trace
def waits_to_copy(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the long syncs of the steps whose ops copy much to pageable memory.

    ``copying`` is whether the host waits for these copies at this place; otherwise it
    waits for what the GPU has to do before them.
    """
    syncs = syncs_in_ops(trace, steady).filter(waits_long())
    kernels = trace.kernels
    chosen = (kernels["activity"] == "memcpy") & (
        kernels["bytes"] >= PAGEABLE_COPY_BYTES
    )
    copies = kernels[["op", "dur", "name"]].filter(known(chosen))
    copies = copies.filter(named_like(copies, DTOH) & named_like(copies, PAGEABLE))
    copied = copies.group_by("op").agg(copied=pl.col("dur").sum())
    share = pl.col("copied").sum() / pl.col("wait").sum()
    return syncs.join(copied, on="op", maintain_order="left").with_columns(
        copying=share.over(*same_place()) > COPYING_SHARE
    )


def _by_op(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each op that syncs on its own account."""
    by_op = (
        calls.filter(pl.col("op").is_not_null())
        .sort("ts")
        .group_by("op", maintain_order=True)
        .agg(
            pl.col("id", "name", "ts", *_PLACE).first(),
            wait=pl.col("dur").sum(),
            end=END.max(),
        )
    )
    syncing = by_op.filter(~_explained(trace, by_op["op"]))
    return syncing.join(
        _directions(trace), on="op", how="left", maintain_order="left"
    ).filter((pl.col("wait") >= COPY_SYNC_NS) | pl.col("copies").ne_missing(TO_GPU))


def _directions(trace: Trace) -> pl.DataFrame:
    """Return the ops that copy between host and GPU: ``op`` and ``copies``."""
    copies = copy_directions(trace).sort("launch")
    op = trace.runtime["op"][copies["launch"]]
    return (
        pl.DataFrame({"op": op, "copies": copies["direction"]})
        .drop_nulls()
        .unique("op", keep="first")
    )


def _outside_ops(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the sync calls outside of ops on threads that launch work afterwards.

    Nothing is launched after the one with which the profiler ends.
    """
    calls = calls.filter(pl.col("op").is_null(), pl.col("kind") == SYNC)
    if not calls.height:
        return calls.select("id", "name", "op", "ts", *_PLACE, wait="dur", end=END)
    runtime = trace.runtime
    # Most syncs outside of ops are at the end: little is launched after the first.
    after = known((runtime["ts"] > calls["ts"].min()) & (runtime["kernels"] > 0))
    launches = runtime[["thread", "ts"]][rows_where(after)]
    last = launches.group_by("thread").agg(last=pl.col("ts").max())
    return (
        calls.join(last, on="thread", maintain_order="left")
        .filter(pl.col("ts") < pl.col("last"))
        .select("id", "name", "op", "ts", *_PLACE, wait="dur", end=END)
    )


@cached_per_trace
def sync_chains(trace: Trace) -> pl.DataFrame:
    """Return the syncs with their ``chain``, and whether each is the ``longest`` in it.

    ``in_vain`` is whether the GPU idles for most of it, with nothing to wait for.
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
        syncs.with_columns(begun=begun, ended=ended, in_vain=_in_vain(trace, syncs))
        .with_columns(chain=apart.fill_null(value=True).cum_sum())
        .with_columns(
            longest=pl.col("wait").arg_max().over("chain")
            == pl.int_range(pl.len()).over("chain")
        )
        .drop("begun", "ended")
    )


def _in_vain(trace: Trace, syncs: pl.DataFrame) -> pl.Series:
    """Return which syncs are mostly time in which the GPU idles.

    Recording delays the copy, or whatever the wait is
    for, and without the profiler it takes a few microseconds.
    """
    spans = syncs.select(start="ts", end="end")
    idle = overlap(spans, idle_gaps(trace))
    length = spans["end"] - spans["start"]
    return (idle > LONGEST_LAUNCH_LATENCY_NS) & (2 * idle > length)


def written_as(trace: Trace, syncs: pl.DataFrame) -> pl.Series:
    """Return the method that Python called for each sync, as ``tolist``, if known.

    It is ``print`` for all that printing a tensor does.
    """
    methods = _calls_at(trace.frames, syncs, _METHOD).str.extract(_METHOD)
    printing = _calls_at(trace.frames, syncs, _PRINTING).is_not_null()
    return pl.Series(["print"]).zip_with(printing, methods)


def _calls_at(frames: pl.DataFrame, syncs: pl.DataFrame, pattern: str) -> pl.Series:
    """Return for each sync the last of such calls before it, if the sync is in it."""
    nothing = constant(None, syncs.height, pl.String)
    chosen = named_like(frames, pattern)
    if not chosen.any() or not syncs.height:
        return nothing
    # Half of all frames may be such calls: those of threads that never sync are left
    # out, and little is taken of the others.
    threads = syncs["thread"].unique().to_list()
    chosen &= reduce(or_, (frames["thread"] == thread for thread in threads))
    calls = frames[["id", "thread", "ts"]].filter(chosen)
    moments = syncs[["thread", "ts", "end"]].with_row_index("row")
    last = asof(moments, calls, "ts", "ts", by="thread").drop_nulls("id")
    name, start, length = frames[["name", "ts", "dur"]][last["id"]]
    around = start + length >= last["end"]
    name = name.filter(around).cast(pl.String)
    return nothing.scatter(last["row"].filter(around), name)


def _explained(trace: Trace, ops: pl.Series) -> pl.Series:
    """Return of which ops the syncs belong to something else that they do."""
    runtime, copies = trace.runtime, copy_directions(trace)
    allocates = rows_where(runtime["call"] == "allocation")
    large = copies["bytes"] >= PAGEABLE_COPY_BYTES
    large &= copies["pageable"] & (copies["direction"] == TO_GPU)
    others = runtime["op"][pl.concat([allocates, copies["launch"].filter(large)])]
    captured = inside(trace, all_captures(trace)["id"])[ops].is_not_null()
    return captured | trace.ops["compiling"][ops] | ops.is_in(others.implode())


def _with_gap(trace: Trace, syncs: pl.DataFrame) -> pl.DataFrame:
    """Add how long the GPU idles from a sync on; a gap belongs to its first sync."""
    gaps = idle_gaps(trace)
    row = gap_at(gaps, syncs["end"])
    first = row.is_first_distinct() & row.is_not_null()
    since, start = syncs["ts"], gaps["start"][row]
    idle = gaps["end"][row] - since.zip_with(since > start, start)
    return syncs.with_columns(gap=idle.zip_with(first, pl.Series([0])))
