"""Matmuls: their sizes, the kernels they ran on, and how fast they could be."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.base.assumptions import (
    MATMUL_EFFICIENCY,
    TINY_MULTIPLICATIONS,
    UNKNOWN_SAVING,
)
from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.ownership import NOTHING, named, named_like, plain
from traceq.analysis.base.roofline import roofline_ns
from traceq.expressions import known
from traceq.model.dtypes import SIZES

if TYPE_CHECKING:
    from traceq.analysis.base.device import Gpu
    from traceq.analysis.base.ownership import Row
    from traceq.trace import Trace

MATMULS = {
    "aten::mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::bmm": (0, 1),
    "aten::baddbmm": (1, 2),
}
"""Which inputs of an op are the two matrices."""

_BATCHED = 3
_SHAPES = {
    "left": pl.List(pl.Int64()),
    "right": pl.List(pl.Int64()),
    "type": pl.String(),
    "rows": pl.List(pl.Int64()),
    "flops": pl.Float64(),
    "moved": pl.Float64(),
}


@cached_per_trace
def matmuls(trace: Trace, kernels: pl.DataFrame, pattern: str) -> pl.DataFrame:
    """Return the kernels of this name that compute matmuls, with what they compute.

    Added are ``matmul``, the op; ``left`` and ``right``, the shapes of the matrices;
    ``type``, their dtype; ``rows``, how many elements lie between one row (or column)
    and the next in the matrices and in the result, or just the sizes where strides were
    not recorded; ``flops`` and ``moved``, operations and bytes. All of these are null
    where shapes were not recorded. Convolutions are not included.
    """
    computing = are_matmuls(trace, kernels)
    chosen = named_like(kernels, pattern) & computing
    if not chosen.any():
        return NOTHING
    calls = _calls(trace, kernels).filter(chosen.filter(computing))
    return kernels.filter(chosen).hstack(calls)


@cached_per_trace
def _calls(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return what all kernels that compute matmuls compute: ``matmul`` and _SHAPES."""
    op = kernels["op"].filter(are_matmuls(trace, kernels))
    ops = trace.ops[["name", "inputs"]][op]
    called = plain(trace.ops, ops["name"]).alias("matmul")
    calls = pl.DataFrame([called, ops["inputs"]])
    distinct = calls.unique(maintain_order=True)
    given = distinct.join(
        trace.inputs.select("dims", "types", "strides", inputs="id"),
        on="inputs",
        how="left",
        maintain_order="left",
    )
    shapes = pl.DataFrame(
        [_shapes(row) for row in given.iter_rows(named=True)],
        schema=_SHAPES,
        orient="row",
    )
    found = calls.join(
        distinct.hstack(shapes),
        on=["matmul", "inputs"],
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    return found.drop("inputs")


@cached_per_trace
def are_matmuls(trace: Trace, kernels: pl.DataFrame) -> pl.Series:
    """Return which kernels compute matmuls, of whatever name."""
    of_matmul = known(named(trace.ops, MATMULS)[kernels["op"]])
    return known(kernels["kind"] == "gemm") & of_matmul


def _shapes(row: Row) -> tuple[Any, ...]:
    nothing = (None,) * len(_SHAPES)
    one, two = MATMULS[row["matmul"]]
    try:
        left, right = row["dims"][one], row["dims"][two]
        kind = row["types"][one]
        *batch, high, deep = left
        wide = right[-1]
        rows = [high, deep, wide]
        if row["strides"]:
            rows = [_row(row["strides"][one]), _row(row["strides"][two]), wide]
    except (IndexError, TypeError, ValueError):
        # Shapes that are missing, or not those of the op's schema.
        return nothing
    count = prod(batch)
    moved = count * (high * deep + deep * wide + high * wide) * SIZES.get(kind, 0)
    return left, right, kind, rows, 2.0 * count * high * deep * wide, float(moved)


def _row(strides: list[int]) -> int:
    """Return the leading dimension: the distance of rows, or of columns."""
    return max(strides[-2:])


def tiny_matmuls(left: pl.Expr, right: pl.Expr) -> pl.Expr:
    """Return whether shapes are those of a batch of matmuls too small for any tile.

    That is of a few multiplications each, or of vectors: tensor cores do not help.
    """
    high, deep = (left.list.get(at, null_on_oob=True) for at in (1, 2))
    wide = right.list.get(2, null_on_oob=True)
    # The backward of a product of vectors has a depth of 1.
    inner, outer = (high == 1) & (wide == 1), (high == 1) | (wide == 1)
    vectors = inner | ((deep == 1) & outer)
    return known(
        (left.list.len() == _BATCHED)
        & ((high * deep * wide <= TINY_MULTIPLICATIONS) | vectors)
    )


def with_fastest(calls: pl.DataFrame, gpu: Gpu, dtype: str) -> pl.DataFrame:
    """Add ``fastest``: how long good kernels take in ``dtype``, at most ``dur``.

    Where shapes or the peaks of the GPU are not known, it is a share of the time.
    """
    sizes = calls.select("flops", "moved").unique(maintain_order=True)
    times = [
        None
        if flops is None
        else roofline_ns(gpu, MATMUL_EFFICIENCY, moved=moved, flops=flops, dtype=dtype)
        for flops, moved in sizes.iter_rows()
    ]
    found = calls.select("flops", "moved", "dur").join(
        sizes.with_columns(fastest=pl.Series(times, dtype=pl.Float64)),
        on=["flops", "moved"],
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    fastest = found.select(
        fastest=pl.min_horizontal(
            pl.col("fastest").fill_null((1 - UNKNOWN_SAVING) * pl.col("dur")), "dur"
        )
    )
    return calls.hstack(fastest)


def saved() -> pl.Expr:
    """Return what good kernels would save of each, in nanoseconds."""
    return pl.col("dur") - pl.col("fastest")


def saved_share() -> pl.Expr:
    """Return the share of the time of a group that good kernels would save."""
    return saved().sum() / pl.col("dur").sum()
