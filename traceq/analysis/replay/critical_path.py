"""What a step is as long as: the chain of work in which each waits for the one before.

The replay says when everything begins; walked back from the end, what began last before
each thing, and had to be done, is the chain. Nothing else, made faster, would help.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.time.idle_causes import causes_in
from traceq.intervals import disjoint

if TYPE_CHECKING:
    from traceq.analysis.replay.simulation import Replay, TimeScale
    from traceq.trace import Trace

_SPANS = {"start": pl.Int64, "end": pl.Int64, "time": pl.Float64}


@dataclass(frozen=True)
class CriticalPath:
    """The chain that a step is as long as, per step."""

    kernels: pl.DataFrame
    """The GPU's part: ``name``, ``file``, ``line``, ``function``, ``calls``, ``time``,
    longest first."""
    host: pl.DataFrame
    """The host's part: ``cause``, what it did, and ``time``, longest first."""
    gpu_ns: float
    """How long the GPU's part is, with the gaps between its kernels."""
    host_ns: float


def critical_path(trace: Trace, replay: Replay, scale: TimeScale) -> CriticalPath:
    """Return the chain of the last of the steps that follow each other at this pace."""
    work = replay.timeline(scale)
    rows, spans = _walked(replay, scale, work)
    steps = replay.model.steps
    chain = work.select(pl.all().gather(pl.Series(rows, dtype=pl.UInt32)))
    place = trace.kernels.select("name", "file", "line", "function")
    kernels = (
        place.select(pl.all().gather(chain["id"]))
        .with_columns(pl.col("name", "file", "function").cast(pl.String))
        .with_columns(time=chain["done"] - chain["begin"])
        .group_by("name", "file", "line", "function")
        .agg(calls=pl.len() / steps, time=pl.col("time").sum() / steps)
        .sort("time", "name", "file", "line", descending=[True, *[False] * 3])
    )
    on_host = pl.DataFrame(spans, schema=_SPANS, orient="row")
    host_ns = float(on_host["time"].sum()) / steps
    causes = causes_in(trace, disjoint(on_host.select("start", "end")))
    total = max(1, int(causes["time"].sum()))
    return CriticalPath(
        kernels=kernels,
        host=causes.with_columns(pl.col("time") / total * host_ns),
        gpu_ns=max(0.0, replay.run(scale=scale).step_ns - host_ns),
        host_ns=host_ns,
    )


def _walked(
    replay: Replay, scale: TimeScale, work: pl.DataFrame
) -> tuple[list[int], list[tuple[int, int, float]]]:
    """Return the rows of the work on the chain, and the spans of the host.

    This goes from link to link, of which there are as many as there are changes
    between GPU and host.
    """
    lanes = work["lane"].to_list()
    launched, done = work["launched"].to_list(), work["done"].to_list()
    after = work["after"].to_list()
    # The row from which on the work of a stream is one chain without the host.
    first = (
        work.select(
            pl.when(pl.col("launched") | pl.col("after").is_not_null())
            .then(pl.int_range(pl.len()))
            .forward_fill()
            .over("lane")
        )
        .to_series()
        .to_list()
    )
    waits = replay.model.waits
    begun, came, on = (waits[column].to_list() for column in ("start", "end", "on"))
    ats, epochs = work["at"].to_list(), work["epoch"].to_list()
    edges, worked = replay.host_time(scale)
    run = replay.run(scale=scale)
    reached = [*run.host]

    def host_span(start: int, end: int) -> tuple[int, int, float]:
        at = edges.search_sorted(pl.Series([start, end])).clip(
            upper_bound=len(edges) - 1
        )
        low, high = worked.gather(at)
        return start, end, high - low

    rows: list[int] = []
    spans: list[tuple[int, int, float]] = []
    begin, end = edges[0], edges[-1]
    finished = reached[-1] + host_span(came[-1] if came else begin, end)[2]
    row = max(range(len(done)), key=done.__getitem__, default=None)
    if row is not None and done[row] < finished:
        row = None
    epoch, until = len(begun), end
    while True:
        if row is not None:
            start = first[row]
            if start is None:
                rows += [at for at in range(row + 1) if lanes[at] == lanes[row]]
                break
            rows += range(start, row + 1)
            if not launched[start]:
                row = after[start]
                continue
            epoch, until, row = epochs[start], ats[start], None
        if epoch == 0:
            spans.append(host_span(begin, until))
            break
        wait = epoch - 1
        target = on[wait]
        came_late = (
            target is not None
            and done[target]
            > reached[wait]
            + (host_span(came[wait - 1] if wait else begin, begun[wait])[2])
        )
        spans.append(host_span(came[wait], until))
        epoch, until = wait, begun[wait]
        row = target if came_late else None
    return rows, [span for span in spans if span[1] > span[0]]
