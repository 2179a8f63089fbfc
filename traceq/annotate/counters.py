"""Counter tracks of the GPU's activity, with a few points for the whole window."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from traceq.analysis.base.gpu_idle import busy_spans
from traceq.analysis.time.roofline import roofline
from traceq.common.expressions import END, asof
from traceq.common.intervals import covered_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.model.trace import Trace

_PERCENT = 100


class Counter(NamedTuple):
    """A counter and its points."""

    name: str
    unit: str
    points: pl.DataFrame
    """``at`` and ``value``, which holds until the next."""


def counters(trace: Trace, start: int, end: int, most: int) -> Iterator[Counter]:
    """Yield counters of a window of time, with at most this many points each.

    The GPU's busy share is of the busiest one. The bandwidth is that of the least bytes
    that its ops have to move, as for the roofline. Launches in flight are those that
    the host has made and the GPU has not finished.
    """
    if start >= end:
        return
    bins = min(most - 1, end - start)
    edges = pl.Series(
        "at", [start + (end - start) * at // bins for at in range(bins + 1)], pl.Int64
    )
    width = edges.diff()[1:]
    busy = covered_until(busy_spans(trace.kernels), edges)
    yield _counter("GPU busy", "%", edges, _PERCENT * busy.diff()[1:] / width)
    if trace.facts.shapes:
        moved = _moved_until(_rates(trace), edges).diff()[1:]
        yield _counter("memory bandwidth", "GB/s, at least", edges, moved / width)
    launched = trace.kernels.select(
        at=trace.runtime["ts"][trace.kernels["launch"]], end=END
    ).drop_nulls()
    before = [launched[column].sort() for column in ("at", "end")]
    begun, done = (entry.search_sorted(edges, side="right") for entry in before)
    queued = begun.cast(pl.Int64) - done.cast(pl.Int64)
    yield _counter("launches", "in flight", edges, queued[:-1])


def _counter(name: str, unit: str, edges: pl.Series, values: pl.Series) -> Counter:
    """Return a counter with the points at which it changes, and 0 at its end."""
    points = pl.DataFrame(
        {"at": edges, "value": [*values.cast(pl.Float64).round(1), 0.0]}
    )
    changes = pl.col("value") != pl.col("value").shift(1)
    return Counter(name, unit, points.filter(changes.fill_null(value=True)))


def _rates(trace: Trace) -> pl.DataFrame:
    """Return the bytes per nanosecond of work: ``start``, ``end`` and ``rate``."""
    ops = roofline(trace).ops.filter(pl.col("gpu") > 0, pl.col("bytes") > 0)
    rates = ops.select(id="kernels", rate=pl.col("bytes") / pl.col("gpu")).explode("id")
    kernels = trace.kernels.select("id", start="ts", end=END)
    return rates.join(kernels, on="id").select("start", "end", "rate")


def _moved_until(work: pl.DataFrame, moments: pl.Series) -> pl.Series:
    """Return the bytes that were moved before each moment."""
    changes = (
        pl.concat(
            [
                work.select(time="start", change="rate"),
                work.select(time="end", change=-pl.col("rate")),
            ]
        )
        .sort("time")
        .with_columns(rate=pl.col("change").cum_sum())
        .with_columns(
            before=(
                pl.col("rate").shift(1) * (pl.col("time") - pl.col("time").shift(1))
            )
            .fill_null(0.0)
            .cum_sum()
        )
    )
    sums = asof(moments.to_frame("at"), changes, "at", "time")
    moved = pl.col("before") + pl.col("rate") * (pl.col("at") - pl.col("time"))
    return sums.select(moved.fill_null(0.0)).to_series()
