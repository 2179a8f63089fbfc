"""Calls that start GPU work."""

from __future__ import annotations

import polars as pl

from traceq.model.names import BEGIN_CAPTURE, END_CAPTURE


def launches_outside_captures(runtime: pl.DataFrame) -> pl.DataFrame:
    """Return the launches that ran at once, without those that a graph recorded."""
    launches = pl.col("call").is_in(["launch", "graph launch"])
    if not (runtime["call"] == "capture").any():
        return runtime.filter(launches)
    name = pl.col("name").cast(pl.String)
    change = (
        name.str.contains(BEGIN_CAPTURE).cast(pl.Int32)
        - name.str.contains(END_CAPTURE).cast(pl.Int32)
    ).cum_sum()
    return (
        runtime.sort("thread", "ts", "id")
        .with_columns(open_captures=change.over("thread"))
        .filter(launches, pl.col("open_captures") <= 0)
        .drop("open_captures")
    )
