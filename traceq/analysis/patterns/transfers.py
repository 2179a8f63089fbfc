"""Copies between host and GPU: which way they go, and how fast they could be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.model.names import HTOD, PINNED

if TYPE_CHECKING:
    from traceq.analysis.base.device import Gpu

TO_GPU, TO_HOST = "to the GPU", "to the host"

# Gigabytes per second that pinned copies reach over PCIe 5, 4 and 3, which came with
# these major compute capabilities.
_RATES = ((9, 40.0), (8, 20.0), (0, 10.0))
# Shorter copies say nothing about the rate.
_LONG_BYTES = 1 << 20


def direction() -> pl.Expr:
    """Return which way a transfer goes."""
    to_gpu = pl.col("name").cast(pl.String).str.contains(HTOD)
    return pl.when(to_gpu).then(pl.lit(TO_GPU)).otherwise(pl.lit(TO_HOST))


def pinned_rate(moved: pl.DataFrame, gpu: Gpu, way: str) -> float:
    """Return how many gigabytes per second go this way from or to pinned memory.

    It is what pinned copies of the trace do reach, or what is usual for the GPU.
    """
    measured = moved.filter(
        pl.col("name").cast(pl.String).str.contains(PINNED),
        direction() == way,
        pl.col("bytes") >= _LONG_BYTES,
        pl.col("dur") > 0,
    ).select((pl.col("bytes") / pl.col("dur")).median())
    found = measured.item()
    if found:
        return float(found)
    return next(rate for least, rate in _RATES if gpu.capability[0] >= least)
