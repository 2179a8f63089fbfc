"""Kernels of a layer's backward that compute the gradients of its weights alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import Fix, named_like, text

from ._discarded import layers

if TYPE_CHECKING:
    from traceq.linter import View

_OF_WEIGHT = r"(?i)wgrad|bgrad|weight_grad|grad_weight|bwd_weight|bwd_filter|bias"
_OF_INPUT = r"(?i)dgrad|bwd_data|grad_input"
# These compute the gradients of what a weight is made of, and nothing else.
_MAKES_WEIGHT = "^WeightNorm"
_MATMULS = r"^aten::(mm|addmm|bmm|baddbmm)\b"
# Where names do not tell them apart, half of a convolution's backward is the weights'.
_HALF = 0.5
# A tensor of two dimensions or more.
_MATRIX = r"\[\d+(?:,\d+)+\]"


def weight_work(view: View, wasted: pl.DataFrame) -> list[Fix]:
    """Return what goes with these gradients: theirs, and the weights' kernels alone."""
    outermost = view.outermost_ops
    kernels = view.kernels.select("id", "op", text("name")).drop_nulls("op")
    kernels = kernels.with_columns(node=outermost[kernels["op"]])
    known = wasted["layer"].drop_nulls().unique()
    making = layers(view.trace).filter(
        pl.col("name").str.contains(_MAKES_WEIGHT),
        pl.col("layer").is_in(known.implode()),
    )
    whole = pl.concat([wasted["node"], making["node"]]).unique()
    of_gradient = kernels.filter(pl.col("node").is_in(whole.implode()))
    of_layer = kernels.filter(pl.col("node").is_in(known.implode()))
    of_layer = of_layer.with_columns(share=_shares(view, of_layer, wasted))
    fixes = [Fix(kernels=of_gradient["id"], ops=whole)]
    for (share,), group in of_layer.group_by("share", maintain_order=True):
        if share:
            fixes.append(Fix(kernels=group["id"], kernel_share=float(str(share))))
    return fixes


def _shares(view: View, kernels: pl.DataFrame, wasted: pl.DataFrame) -> pl.Series:
    """Return the share of each kernel of a layer's node that is of its weights."""
    ops = view.trace.ops
    matmuls = ops.filter(named_like(ops, _MATMULS))
    of_matmul = kernels["op"].is_in(matmuls["id"].implode())
    sums = named_like(ops, r"^aten::sum\b")[kernels["op"]]
    result = _results(view, kernels.filter(of_matmul))
    shapes = (
        wasted.select(node="layer", weight="shape")
        .drop_nulls()
        .unique()
        .group_by("node")
        .agg("weight")
    )
    rows = (
        kernels.with_columns(
            of_matmul=of_matmul,
            sums=sums,
            named_weight=pl.col("name").str.contains(_OF_WEIGHT),
        )
        .join(result, on="op", how="left", maintain_order="left")
        .join(shapes, on="node", how="left", maintain_order="left")
    )
    of_weight = pl.col("result").is_in(pl.col("weight")) | pl.col("turned").is_in(
        pl.col("weight")
    )
    named_in_node = pl.col("named_weight").any().over("node")
    whole = pl.col("sums") | pl.col("named_weight") | of_weight.fill_null(value=False)
    of_input = pl.col("name").str.contains(_OF_INPUT)
    stays = pl.col("of_matmul").any().over("node") | named_in_node | of_input
    return rows.select(
        share=pl.when(whole).then(1.0).when(stays).then(0.0).otherwise(_HALF)
    ).to_series()


def _results(view: View, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the shape that each matmul makes, and that turned round, as text."""
    ops = kernels["op"].unique()
    dims = view.trace.inputs[["id", "dims_text"]]
    inputs = view.trace.ops["inputs"][ops]
    shapes = dims["dims_text"][inputs].str.extract_all(_MATRIX)
    sides = pl.DataFrame({"op": ops, "shapes": shapes}).with_columns(
        rows=pl.col("shapes").list.get(-2, null_on_oob=True).str.extract(r"\[(\d+),"),
        columns=pl.col("shapes")
        .list.get(-1, null_on_oob=True)
        .str.extract(r",(\d+)\]"),
    )
    return sides.select(
        "op",
        result=pl.format("[{},{}]", "rows", "columns"),
        turned=pl.format("[{},{}]", "columns", "rows"),
    )
