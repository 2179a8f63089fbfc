"""Launches that ran at once."""

from __future__ import annotations

import polars as pl

from traceq.expressions import text
from traceq.model.names import BEGIN_CAPTURE, END_CAPTURE


def launches_outside_captures(runtime: pl.DataFrame) -> pl.DataFrame:
    """Return the launches that ran at once, without those captured in a CUDA graph."""
    launches = pl.col("call").is_in(["launch", "graph launch"])
    if not (runtime["call"] == "capture").any():
        return runtime.filter(launches)
    opened = (
        text("name").str.contains(BEGIN_CAPTURE).cast(pl.Int32)
        - text("name").str.contains(END_CAPTURE).cast(pl.Int32)
    ).cum_sum()
    return (
        runtime.sort("thread", "ts", "id")
        .with_columns(open_captures=opened.over("thread"))
        .filter(launches, pl.col("open_captures") <= 0)
        .drop("open_captures")
    )
