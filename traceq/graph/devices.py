"""Choice of the GPU to analyse, in a trace of several."""

from __future__ import annotations

import polars as pl


def busiest_device(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the work of the GPU with the most work."""
    if kernels["device"].n_unique() <= 1:
        return kernels
    devices = kernels.group_by("device").agg(pl.col("dur").sum()).sort("dur", "device")
    return kernels.filter(pl.col("device").eq_missing(devices["device"].last()))
