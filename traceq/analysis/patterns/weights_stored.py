"""8-bit weights that are dequantized before use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import named
from traceq.analysis.base.sizes import first_sizes
from traceq.common.expressions import constant, elements, known, nth
from traceq.model.dtypes import BYTE, FLOATING

if TYPE_CHECKING:
    from traceq.model.trace import Trace

# Ops whose second input is a weight: always, and if it has two dims.
_WEIGHTED = ("aten::linear", "aten::conv1d", "aten::conv2d", "aten::conv3d")
_MATMUL = "aten::matmul"
_MATRIX = 2
_SCALING = ("aten::mul", "aten::mul_")


def dequantizes_weight(trace: Trace, moved: pl.DataFrame) -> pl.Series:
    """Return which copies are the program's casts of 8-bit weights to floats.

    ``moved`` has the columns that traceq.analysis.patterns.copies adds. What is cast
    has the number of elements of a weight, and begins with its first or last dim: it
    may be in groups, or transposed. What has the shape of an input of such an op may
    be that input.
    """
    nothing = constant(value=False, count=moved.height, dtype=pl.Boolean)
    src, dst = moved["src"], moved["dst"]
    dequantized = src.is_in(BYTE) & dst.is_in(FLOATING) & ~dst.is_in(BYTE)
    from_bytes = moved["cast"] & moved["own"] & known(dequantized)
    if not from_bytes.any():
        return nothing
    used = _used(trace)
    ends = (pl.col("weight").list.first(), pl.col("weight").list.last())
    weights = pl.concat(used.select("numel", end=end) for end in ends)
    casts = (
        moved.select("dims", "numel", end=pl.col("dims").list.first())
        .with_row_index("row")
        .filter(from_bytes)
        .join(weights, on=["numel", "end"], how="semi")
        .join(used, left_on="dims", right_on="given", how="anti")
    )
    return nothing.scatter(casts["row"], values=True)


def _used(trace: Trace) -> pl.DataFrame:
    """Return the shapes that ops are ``given`` with a ``weight`` of ``numel``."""
    ops, inputs = trace.ops, trace.inputs
    weighted, matmuls = (
        inputs[["dims"]][ops["inputs"].filter(named(ops, names)).drop_nulls().unique()]
        for names in (_WEIGHTED, [_MATMUL])
    )
    matrices = matmuls.filter(nth("dims", 1).list.len() == _MATRIX)
    return pl.concat([weighted, matrices]).select(
        given=nth("dims", 0), weight=nth("dims", 1), numel=elements(1)
    )


def scaled_after(trace: Trace, casts: pl.DataFrame) -> pl.Series:
    """Return the multiplications that follow these casts at once, of their size."""
    ops = trace.ops
    outermost = ops[["id", "thread", "inputs"]].filter(ops["parent"].is_null())
    scales = (
        outermost.with_columns(
            request=pl.col("id").shift(1).over("thread"),
            scales=named(ops, _SCALING)[outermost["id"]],
            numel=first_sizes(trace)[outermost["inputs"]],
        )
        .filter("scales")
        .join(casts, on=["request", "numel"], how="semi")
    )
    return scales["id"]
