"""When the GPU was busy, and when it had nothing to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.graph.devices import busiest_device
from traceq.intervals import spans

if TYPE_CHECKING:
    from traceq.trace import Trace


@cached_per_trace
def idle_gaps(trace: Trace) -> pl.DataFrame:
    """Return the stretches between the busiest GPU's work: ``start`` and ``end``.

    They are in order and do not overlap. What lies before its first work and after
    its last is none: nobody knows what it did there.
    """
    return (
        busiest_device(trace.kernels)
        .select(ts="ts", done=pl.col("ts") + pl.col("dur"))
        .sort("ts")
        .select(start=pl.col("done").cum_max(), end=pl.col("ts").shift(-1))
        .filter(pl.col("end") > pl.col("start"))
    )


def busy_spans(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return when the GPU was busy; of several GPUs, the one with the most work."""
    return spans(busiest_device(kernels))


def gap_at(idle: pl.DataFrame, times: pl.Series) -> pl.Series:
    """Return for each time the row of the idle stretch it falls into, if any."""
    before = idle["start"].search_sorted(times, side="right").cast(pl.Int64) - 1
    at = pl.select(pl.when(before >= 0).then(before)).to_series()
    ends = idle["end"].gather(at)
    return pl.select(pl.when(times < ends).then(at)).to_series().alias("stretch")
