"""GPU time by line and module, with fused kernels split among their ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.graph.source.places import COLUMNS

if TYPE_CHECKING:
    from traceq.model.trace import Trace


def by_part(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return kernels by place, with the part of their duration there as ``time``.

    A kernel that torch.compile made of ops of several lines or modules is there once
    for each, with its place and an estimated share of its time, as the table ``fused``
    has it; any other once, with all of it. ``time`` adds up to the kernels' ``dur``.
    """
    parts = kernels.select("id", "op").join(_places(trace), on="op")
    split = kernels.drop(COLUMNS).join(parts.drop("op"), on="id")
    whole = kernels.join(parts, on="id", how="anti").with_columns(share=pl.lit(1.0))
    rows = pl.concat([whole, split.select(whole.columns)])
    return rows.with_columns(time=pl.col("dur") * pl.col("share")).sort("ts", "id")


@cached_per_trace
def _places(trace: Trace) -> pl.DataFrame:
    """Return the places of the ops of generated kernels, and their fractions."""
    ran = trace.fused.filter(pl.col("op").is_not_null())
    shares = ran.group_by("op", *COLUMNS, maintain_order=True).agg(
        pl.col("share").sum()
    )
    return shares.filter(pl.col("share") > 0)
