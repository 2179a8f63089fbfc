"""Runtime calls that block the host until the GPU has finished some work.

Every analysis of waiting for the GPU starts here and filters by ``kind``: a sync of the
program is not a launch that blocks because the launch queue is full.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import (
    BLOCKED_LAUNCH,
    BLOCKED_LAUNCH_NS,
    IDLE_WHILE_BLOCKED,
    LAUNCH_QUEUE,
)
from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.gpu_idle import idle_gaps
from traceq.analysis.base.ownership import named_like
from traceq.common.expressions import constant, known, rows_where, text
from traceq.common.intervals import overlap, spans
from traceq.model.names import BLOCKING_COPY, BLOCKING_FREE, DTOH, HTOD, PAGEABLE

if TYPE_CHECKING:
    from traceq.model.trace import Trace

SYNC = "sync"
"""A call that does nothing but wait, as cudaStreamSynchronize."""
COPY_TO_HOST = "copy to host"
"""A copy to the host that returns once done: cudaMemcpy, or to pageable memory."""
OTHER_COPY = "other copy"
"""Any other blocking copy: from pageable memory, or between GPUs by cudaMemcpy."""
FREE = "free"
"""A free that waits for all work of the GPU, as cudaFree."""
FULL_QUEUE = "full launch queue"
"""A launch while the GPU is LAUNCH_QUEUE launches behind, or that takes as if it were.
"""

DEVICE_SYNCS = (SYNC, COPY_TO_HOST)
"""Kinds by which a program waits for a result: what is called a sync in reports."""

_STREAM_WAIT = "Stream Wait Event"
TO_HOST, TO_GPU = "to host", "to GPU"


@cached_per_trace
def blocking_calls(trace: Trace) -> pl.DataFrame:
    """Return the rows of ``runtime`` that block, with their ``kind``."""
    runtime, call = trace.runtime, trace.runtime["call"]
    copies = copy_directions(trace)

    def started(chosen: pl.Series) -> pl.Series:
        # The launch of a copy is a row of the calls.
        nothing = constant(value=False, count=runtime.height, dtype=pl.Boolean)
        return nothing.scatter(copies["launch"].filter(chosen), values=True)

    copying = (call == "copy") & named_like(runtime, BLOCKING_COPY)
    kinds = {
        "syncs": call == "sync",
        "copies": copying | started(copies["pageable"]),
        "to_host": started(known(copies["direction"] == TO_HOST)),
        "frees": named_like(runtime, BLOCKING_FREE),
        "queue": ((call == "launch") & _behind(trace)) | _throttled(trace),
    }
    blocking = [kinds[kind] for kind in ("syncs", "copies", "frees", "queue")]
    # Few calls do: only of those it matters why.
    rows = rows_where(known(reduce(or_, blocking)))
    kind = (
        pl.when("syncs")
        .then(pl.lit(SYNC))
        .when(pl.col("copies") & pl.col("to_host"))
        .then(pl.lit(COPY_TO_HOST))
        .when("copies")
        .then(pl.lit(OTHER_COPY))
        .when("frees")
        .then(pl.lit(FREE))
        .otherwise(pl.lit(FULL_QUEUE))
    )
    kind_column = pl.DataFrame(kinds)[rows].select(kind=kind)
    return runtime[rows].hstack(kind_column)


@cached_per_trace
def stream_waits(trace: Trace) -> pl.DataFrame | None:
    """Return the waits of streams for events: ``device``, ``stream`` and ``at``.

    None where the profiler does not record them all, as PyTorch's.
    """
    waits = trace.other.filter(text("name") == _STREAM_WAIT)
    if not trace.facts.recorder or waits.is_empty():
        return None
    ids = waits["args"].str.json_decode(
        pl.Struct({"device": pl.Int64, "stream": pl.Int64})
    )
    return pl.DataFrame(
        [
            ids.struct.field("device"),
            ids.struct.field("stream"),
            waits["ts"].alias("at"),
        ]
    ).drop_nulls()


@cached_per_trace
def copy_directions(trace: Trace) -> pl.DataFrame:
    """Return the calls that copy: ``launch``, ``direction``, ``pageable``, ``bytes``.

    The direction is TO_HOST, TO_GPU, or null for copies inside the GPU.
    """
    kernels = trace.kernels
    copies = kernels[["launch", "bytes", "name"]].filter(
        kernels["activity"] == "memcpy"
    )
    to_host, to_gpu, pageable = (
        named_like(copies, pattern) for pattern in (DTOH, HTOD, PAGEABLE)
    )
    return (
        copies.select(
            "launch",
            "bytes",
            direction=pl.when(to_host)
            .then(pl.lit(TO_HOST))
            .when(to_gpu)
            .then(pl.lit(TO_GPU)),
            pageable=pageable,
        )
        .drop_nulls("launch")
        .unique("launch", keep="first", maintain_order=True)
    )


def _throttled(trace: Trace) -> pl.Series:
    """Return which launches take far longer than usual while the GPU is busy.

    What was launched before the recording fills the queue as well, and is not counted.
    """
    runtime, first = trace.runtime, trace.kernels["ts"].min()
    none = pl.Series([False]).new_from_index(0, runtime.height)
    length, call = runtime["dur"], runtime["call"]
    usual = length.filter(call == "launch").median()
    if not isinstance(first, int) or not isinstance(usual, (int, float)):
        return none
    # Few launches are this long: only of these it matters what the GPU does meanwhile.
    long = (length > BLOCKED_LAUNCH_NS) & (length > BLOCKED_LAUNCH * usual)
    launches = (call == "launch") | (call == "set")
    rows = rows_where(known(long & launches))
    if not len(rows):
        return none
    calls = spans(runtime[["ts", "dur"]][rows])
    length = calls["end"] - calls["start"]
    idle = overlap(calls, idle_gaps(trace))
    blocked = (idle < IDLE_WHILE_BLOCKED * length) & (calls["end"] > first)
    return none.scatter(rows.filter(blocked), values=True)


def _behind(trace: Trace) -> pl.Series:
    """Return for each call whether at least LAUNCH_QUEUE launches were pending."""
    work = trace.kernels[["launch", "ts"]].drop_nulls("launch")
    launched = trace.runtime["ts"][work["launch"]].sort()
    begun = work["ts"].sort()
    # So it is never, if each was begun before that many had followed.
    followed = launched[LAUNCH_QUEUE - 1 :]
    if not (begun[: len(followed)] > followed).any():
        return pl.Series([False]).new_from_index(0, trace.runtime.height)
    before, started = (
        moments.search_sorted(trace.runtime["ts"]).cast(pl.Int64)
        for moments in (launched, begun)
    )
    return before - started >= LAUNCH_QUEUE
