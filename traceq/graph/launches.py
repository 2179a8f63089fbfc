"""Which call of which op started each piece of work on the GPU."""

from __future__ import annotations

import polars as pl

from traceq.graph import source
from traceq.graph.host import describe
from traceq.graph.nesting import INDEX
from traceq.model import names, schema

# torch 1.12 to 2.3 writes the correlation where the op's id should be.
_TRUSTED_SHARE = 0.5
_CONVOLUTION = "conv"
# Kernels whose names say how they compute, not what for.
_PLAIN_KINDS = ("elementwise", "reduction", "memory", "other")


def link(
    kernels: pl.DataFrame, runtime: pl.DataFrame, ops: pl.DataFrame
) -> pl.DataFrame:
    """Complete the table of GPU work: its kinds, launches, ops, steps, sources."""
    kernels = pl.concat(
        [kernels, describe(kernels, names.describe_kernels)], how="horizontal"
    ).sort("ts", "stream", "correlation", "name")
    calls = (
        runtime.lazy()
        .filter(pl.col("correlation").is_not_null())
        .select("correlation", launch="id")
        .unique("correlation", keep="first", maintain_order=True)
        .collect()
    )
    launch = kernels.select("correlation").join(
        calls, on="correlation", how="left", maintain_order="left"
    )["launch"]
    by_launch = runtime["op"].gather(launch)
    by_id = _op_by_external_id(kernels, ops)
    op = pl.select(pl.coalesce(by_launch, by_id)).to_series()
    context = {
        column: pl.select(
            pl.coalesce(runtime[column].gather(launch), ops[column].gather(op))
        ).to_series()
        for column in ("step", "phase")
    }
    place = source.first_known(
        source.gathered(runtime, launch), source.gathered(ops, op)
    )
    linked = kernels.with_columns(
        launch=launch, op=op, **context, **source.columns(place)
    )
    return linked.with_columns(_kind_in_context(ops, op))


def _op_by_external_id(kernels: pl.DataFrame, ops: pl.DataFrame) -> pl.Series:
    ids = kernels.select("external_id", "correlation").drop_nulls()
    differ = (ids["external_id"] != ids["correlation"]).mean()
    if not isinstance(differ, float) or differ <= _TRUSTED_SHARE:
        return pl.Series([None], dtype=INDEX).new_from_index(0, kernels.height)
    known = (
        ops.select("external_id", op="id")
        .drop_nulls()
        .unique("external_id", keep="first", maintain_order=True)
    )
    return kernels.select("external_id").join(
        known, on="external_id", how="left", maintain_order="left"
    )["op"]


def _kind_in_context(ops: pl.DataFrame, op: pl.Series) -> pl.Expr:
    """Say what a kernel is for where its name says only how it computes."""
    name = ops["name"].cast(pl.String).gather(op)
    convolution = name.str.contains(_CONVOLUTION, literal=True)
    return (
        pl.when((pl.col("kind") == "gemm") & convolution)
        .then(pl.lit("conv", pl.Enum(schema.KINDS)))
        .when((pl.col("phase") == "optimizer") & pl.col("kind").is_in(_PLAIN_KINDS))
        .then(pl.lit("optimizer", pl.Enum(schema.KINDS)))
        .otherwise("kind")
        .alias("kind")
    )
