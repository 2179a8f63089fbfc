"""Matmuls: their sizes, the kernels they ran on, and how fast they could be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import (
    MATMUL_EFFICIENCY,
    TINY_MULTIPLICATIONS,
    UNKNOWN_SAVING,
)
from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.ownership import NOTHING, named, named_like, plain
from traceq.analysis.base.roofline import roofline_ns
from traceq.common.expressions import known
from traceq.graph.nesting import INDEX
from traceq.model.dtypes import SIZES

if TYPE_CHECKING:
    from traceq.analysis.base.device import Gpu
    from traceq.model.trace import Trace

MATMULS = {
    "aten::mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::bmm": (0, 1),
    "aten::baddbmm": (1, 2),
}
"""Indices of the two matrices among the inputs of an op."""

_BATCHED = 3
# The columns of kernels that are needed, of dozens.
_OF_KERNELS = (
    *("id", "name", "op", "dur", "dtype"),
    *("module", "file", "line", "function", "via"),
)


@cached_per_trace
def matmuls(trace: Trace, kernels: pl.DataFrame, pattern: str) -> pl.DataFrame:
    """Return the kernels of this name that compute matmuls, with their shapes.

    Of their columns there are _OF_KERNELS. Added are ``matmul``, the op; ``left`` and
    ``right``, the shapes of the matrices; ``type``, their dtype; ``rows``, how many
    elements lie between one row (or column) and the next in the matrices and in the
    result, or just the sizes where strides were not recorded; ``flops`` and ``moved``,
    operations and bytes. All of these are null where shapes were not recorded.
    Convolutions are not included.
    """
    computing = are_matmuls(trace, kernels)
    chosen = named_like(kernels, pattern) & computing
    if not chosen.any():
        return NOTHING
    calls = _calls(trace, kernels).filter(chosen.filter(computing))
    return kernels[[*_OF_KERNELS]].filter(chosen).hstack(calls)


@cached_per_trace
def _calls(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the matmuls of all kernels that compute any, as ``matmuls`` adds them."""
    op = kernels["op"].filter(are_matmuls(trace, kernels))
    ops = trace.ops[["name", "inputs"]][op]
    called = plain(trace.ops, ops["name"]).alias("matmul")
    calls = pl.DataFrame([called, ops["inputs"]])
    distinct = calls.unique(maintain_order=True)
    shaped = calls.join(
        distinct.hstack(_shapes(trace, distinct)),
        on=["matmul", "inputs"],
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    return shaped.drop("inputs")


@cached_per_trace
def are_matmuls(trace: Trace, kernels: pl.DataFrame) -> pl.Series:
    """Return which kernels compute matmuls, of whatever name."""
    of_matmul = known(named(trace.ops, MATMULS)[kernels["op"]])
    return known(kernels["kind"] == "gemm") & of_matmul


def _shapes(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return sizes and dtypes of calls, null where shapes do not fit the op's schema.

    In Polars, though these are few: it is slow to take over lists of Python's.
    """
    pairs = [MATMULS[name] for name in calls["matmul"]]
    column, two = (
        pl.Series([pair[at] for pair in pairs], dtype=INDEX) for at in (0, 1)
    )
    inputs = trace.inputs[["dims", "types", "strides"]][calls["inputs"]].select(
        left=_item("dims", column),
        right=_item("dims", two),
        type=_item("types", column),
        typed=pl.col("types").list.len() > column,
        strided=known(pl.col("strides").list.len() > 0),
        # The leading dimensions: the distance of rows, or of columns.
        left_row=_item("strides", column).list.tail(2).list.max(),
        right_row=_item("strides", two).list.tail(2).list.max(),
    )
    left, right, strided = pl.col("left"), pl.col("right"), pl.col("strided")
    ordered = pl.col("left_row").is_not_null() & pl.col("right_row").is_not_null()
    sides = left.list.len().is_between(2, _BATCHED) & (right.list.len() > 0)
    inputs = inputs.with_columns(
        pl.when(sides, "typed", ordered | ~strided).then(
            pl.col("left", "right", "type")
        )
    )
    high, deep = (left.list.get(at, null_on_oob=True) for at in (-2, -1))
    wide = right.list.get(-1, null_on_oob=True)
    batched = left.list.len() == _BATCHED
    count = pl.when(batched).then(left.list.first()).otherwise(1).cast(pl.Float64)
    size = pl.Series([SIZES.get(kind, 0) for kind in inputs["type"]], dtype=pl.Float64)
    return inputs.select(
        left,
        right,
        "type",
        rows=pl.when(left.is_not_null()).then(
            pl.when(strided)
            .then(pl.concat_list("left_row", "right_row", wide))
            .otherwise(pl.concat_list(high, deep, wide))
        ),
        flops=2.0 * count * high * deep * wide,
        moved=count * (high * deep + deep * wide + high * wide) * size,
    )


def _item(column: str, at: pl.Series) -> pl.Expr:
    return pl.col(column).list.get(pl.lit(at), null_on_oob=True)


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
    """Add ``fastest``: the time of good kernels in ``dtype``, at most ``dur``.

    Where shapes or the peaks of the GPU are not known, it is a share of the time.
    """
    sizes = calls.select("flops", "moved").unique(maintain_order=True)
    times = [
        None
        if flops is None
        else roofline_ns(gpu, MATMUL_EFFICIENCY, moved=moved, flops=flops, dtype=dtype)
        for flops, moved in sizes.iter_rows()
    ]
    timed = calls.select("flops", "moved", "dur").join(
        sizes.with_columns(fastest=pl.Series(times, dtype=pl.Float64)),
        on=["flops", "moved"],
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    fastest = timed.select(
        fastest=pl.min_horizontal(
            pl.col("fastest").fill_null((1 - UNKNOWN_SAVING) * pl.col("dur")), "dur"
        )
    )
    return calls.hstack(fastest)


def by_vector() -> pl.Expr:
    """Return whether a matrix is multiplied by a vector: it is read once either way.

    No kernel is faster than the memory then, and tensor cores have nothing to do.
    """
    left, right = pl.col("left"), pl.col("right")
    row, column = left.list.get(-2, null_on_oob=True), right.list.last()
    return known((row == 1) | (column == 1) | (right.list.len() == 1))


def saved() -> pl.Expr:
    """Return the time that good kernels would save of each, in nanoseconds."""
    return pl.col("dur") - pl.col("fastest")


def saved_share() -> pl.Expr:
    """Return the fraction of a group's time that good kernels would save."""
    return saved().sum() / pl.col("dur").sum()
