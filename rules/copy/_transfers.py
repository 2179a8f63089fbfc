"""Transfers between host and GPU: their direction and their attainable rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.linter import text
from traceq.model import names

if TYPE_CHECKING:
    from traceq.linter import Gpu

TO_GPU, TO_HOST = "to the GPU", "to the host"


def direction() -> pl.Expr:
    """Return the direction of a transfer: TO_GPU or TO_HOST."""
    to_gpu = text("name").str.contains(names.HTOD)
    return pl.when(to_gpu).then(pl.lit(TO_GPU)).otherwise(pl.lit(TO_HOST))


def pinned_rate(moved: pl.DataFrame, gpu: Gpu, way: str) -> float:
    """Return the rate of pinned copies this way, in GB/s.

    It is that of the trace's own pinned copies, else what is usual for the GPU.
    """
    measured = moved.filter(
        text("name").str.contains(names.PINNED),
        direction() == way,
        pl.col("bytes") >= assumptions.RATED_COPY_BYTES,
        pl.col("dur") > 0,
    ).select((pl.col("bytes") / pl.col("dur")).median())
    measured_rate = measured.item()
    if measured_rate:
        return float(measured_rate)
    return next(
        rate for major, rate in assumptions.PINNED_RATES if gpu.capability[0] >= major
    )
