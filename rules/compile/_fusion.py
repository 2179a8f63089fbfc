"""Unfused kernels of torch.compile that a graph break separates."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.patterns import compilation
from traceq.linter import SIZES, fill_false, nearest, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.linter import Trace

# What inductor fuses with what comes before it: pointwise kernels and reductions.
_FUSIBLE = r"^triton_(poi|per|red)_fused_"
_SCHEMA = {
    "region": pl.UInt32,
    "before": pl.String,
    "after": pl.String,
    "kernel": pl.UInt32,
    "share": pl.Float64,
}


def unfused(trace: Trace, regions: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels on both sides of graph breaks that inductor would fuse.

    ``regions`` are compiled regions inside others. Where the last kernel before one and
    the first in it are both of inductor's, and one has a tensor as large as the largest
    of the other, a row has the ``region``, the names ``before`` and ``after``,
    ``kernel``, the second one, and ``share``: of its bytes, those that it would not
    read. What the first one writes may be needed elsewhere, so that is not counted.
    """
    ops = _generated(trace)
    first = _nearest_op(ops, regions, after=True)
    last = _nearest_op(ops, regions, after=False)
    pairs = last.join(first, on="region", suffix="_after")
    rows = [row for item in pairs.iter_rows(named=True) if (row := _pair(item))]
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def _generated(trace: Trace) -> pl.DataFrame:
    """Return the ops that launch in compiled code, with their region and kernel."""
    ops = trace.ops
    region = ops.select(
        fill_false(text("name").str.contains(compilation.REGION))
    ).to_series()
    around = nearest(ops["parent"], region)
    kernels = trace.kernels.filter(pl.col("op").is_not_null())
    ran = kernels.group_by("op", maintain_order=True).agg(kernel=pl.col("id").first())
    return (
        ops.select("id", "ts", "inputs", text("name"), region=around)
        .drop_nulls("region")
        .join(ran, left_on="id", right_on="op")
        .join(
            trace.inputs.select("dims", "types", inputs="id"), on="inputs", how="left"
        )
        .sort("ts")
    )


def _nearest_op(
    ops: pl.DataFrame, regions: pl.DataFrame, *, after: bool
) -> pl.DataFrame:
    """Return the first op of each region, or the last one of its parent before it."""
    inside = regions.select(inner="id", parent="parent", begins="ts")
    if after:
        joined = ops.join(inside, left_on="region", right_on="inner").with_columns(
            inner="region"
        )
    else:
        joined = ops.join(inside, left_on="region", right_on="parent").filter(
            pl.col("ts") < pl.col("begins")
        )
    chosen = pl.all().first() if after else pl.all().last()
    return (
        joined.sort("ts")
        .group_by("inner", maintain_order=True)
        .agg(chosen)
        .select("name", "kernel", "dims", "types", region="inner")
    )


def _pair(row: Mapping[str, Any]) -> tuple[Any, ...] | None:
    names = row["name"], row["name_after"]
    if not all(pl.Series(names).str.contains(_FUSIBLE)):
        return None
    written = max(_sizes(row["dims"], row["types"]), default=0)
    read = _sizes(row["dims_after"], row["types_after"])
    if not written or written not in read:
        return None
    return row["region"], *names, row["kernel_after"], written / sum(read)


def _sizes(dims: list[list[int]] | None, types: list[str] | None) -> list[int]:
    """Return the bytes of each tensor."""
    return [
        prod(one) * SIZES[kind]
        for one, kind in zip(dims or (), types or (), strict=False)
        if one and kind in SIZES
    ]
