"""GPU time by layer and part, to compare many equal layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.steady import steady_steps
from traceq.analysis.patterns.attention_kernels import kernels_by_part
from traceq.common.words import layer_names

if TYPE_CHECKING:
    from traceq.model.trace import Trace

OUTSIDE = "outside of modules"
OPTIMIZER = "optimizer"
_DEEPEST = 8


def by_layer(trace: Trace) -> pl.DataFrame:
    """Return ``layer``, ``part``, ``time`` and ``kernels``, in execution order.

    Times are totals of the steady steps. A layer is the outermost module that has
    others of its class beside it, as one of a model's blocks; its forward and its
    backward are one. What no module ran is the optimizer's, or outside of all.
    """
    kernels = kernels_by_part(trace, steady_steps(trace).kernels)
    layers = _layers(kernels["module"].cast(pl.String).drop_nulls().unique())
    return (
        kernels.with_columns(pl.col("module").cast(pl.String))
        .join(layers, on="module", how="left", maintain_order="left")
        .with_columns(
            layer=pl.coalesce(
                "layer",
                pl.when(pl.col("phase") == OPTIMIZER).then(pl.lit(OPTIMIZER)),
                pl.lit(OUTSIDE),
            )
        )
        .group_by("layer", "part")
        .agg(time=pl.col("dur").sum(), kernels=pl.len(), first=pl.col("ts").min())
        .with_columns(first=pl.col("first").min().over("layer"))
        .sort(pl.col("layer").is_in([OPTIMIZER, OUTSIDE]), "first", "layer", "part")
        .drop("first")
    )


def _layers(modules: pl.Series) -> pl.DataFrame:
    """Return the ``layer`` of each ``module``."""
    paths = pl.DataFrame({"module": modules}).with_columns(
        names=pl.col("module").str.split("/").list.head(_DEEPEST)
    )
    layered = paths.with_columns(layer=pl.lit(None, pl.String))
    for depth in range(1, _DEEPEST + 1):
        upper, outer = (
            pl.col("names").list.head(size).list.join("/")
            for size in (depth, depth - 1)
        )
        level = layered.with_columns(
            path=pl.when(pl.col("names").list.len() >= depth).then(upper),
            outer=outer,
        ).with_columns(kind=layer_names(pl.col("path")))
        several = (
            pl.col("path").drop_nulls().n_unique().over("outer", "kind") > 1
        ) & pl.col("path").is_not_null()
        layered = level.with_columns(
            layer=pl.coalesce("layer", pl.when(several).then("path"))
        ).drop("path", "outer", "kind")
    # Modules without others of their class are shown by the model's own parts.
    return layered.select(
        "module",
        layer=pl.coalesce("layer", pl.col("names").list.head(2).list.join("/")),
    )
