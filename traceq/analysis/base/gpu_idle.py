"""Busy spans and idle gaps of the GPU.

If the trace has several GPUs, the one with the most work is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.common.expressions import END, known, rows_where
from traceq.common.intervals import overlap, spans, uncovered
from traceq.graph.devices import busiest_device
from traceq.graph.host import only
from traceq.graph.launches import late_start
from traceq.graph.nesting import INDEX

if TYPE_CHECKING:
    from traceq.model.trace import Trace


@cached_per_trace
def idle_gaps(trace: Trace) -> pl.DataFrame:
    """Return the idle gaps between the GPU's work: ``start``, ``end`` and ``kernel``.

    They are in order and do not overlap; the kernel is the one that ends a gap. Time
    before the first work and after the last is not a gap: what the GPU did there is
    unknown.
    """
    return _gaps(busiest_device(trace.kernels))


@cached_per_trace
def queued_ns(trace: Trace) -> int:
    """Return how long the first work waits for work from before the recording, or 0.

    What the GPU does until then is unknown: that is no idle time.
    """
    return late_start(busiest_device(trace.kernels), trace.runtime)[1]


def idle_in(trace: Trace, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the idle gaps inside windows of time, cut at their edges.

    The windows have ``start`` and ``end`` and do not overlap. Where no work follows,
    ``kernel`` is null.
    """
    return gaps_in(busiest_device(trace.kernels), windows)


def gaps_in(work: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the gaps between any work inside windows of time, as ``idle_in`` does."""
    edges = pl.concat([windows["start"], windows["end"]]).unique()
    gaps = _gaps(work, edges)
    return gaps.filter(overlap(gaps, windows.select("start", "end")) > 0)


def _gaps(work: pl.DataFrame, edges: pl.Series | None = None) -> pl.DataFrame:
    """Return the gaps between work, each cut at the edges that lie in it."""
    events = work.select("id", start="ts", end=END)
    if edges is not None:
        marks = pl.DataFrame({"start": edges, "end": edges}).select(
            pl.lit(None, events.schema["id"]).alias("id"), "start", "end"
        )
        events = pl.concat([events, marks])
    if not (events["start"].is_sorted() and events["id"].is_sorted()):
        events = events.sort("start", "id", nulls_last=False)
    gaps = events.select(
        start=pl.col("start") - uncovered(pl.col("start"), pl.col("end")),
        end="start",
        kernel=pl.col("id").backward_fill(),
    )
    return gaps[rows_where(gaps["start"] < gaps["end"])]


def busy_spans(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the spans in which the GPU was busy."""
    return spans(busiest_device(kernels))


def gap_at(gaps: pl.DataFrame, moments: pl.Series) -> pl.Series:
    """Return for each moment the row of the gap that it falls into, if any."""
    before = gaps["start"].search_sorted(moments, side="right").cast(pl.Int64) - 1
    row = only(before, before >= 0).cast(INDEX)
    return only(row, known(moments < gaps["end"][row])).alias("gap")
