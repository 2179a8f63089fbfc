"""Matrix products: their sizes, the kernels they ran on, and how fast they could be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.ownership import plain_names

if TYPE_CHECKING:
    from traceq.model.gpu_peaks import Peak
    from traceq.trace import Trace

# Which inputs of an op are the two matrices.
PRODUCTS = {
    "aten::mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::bmm": (0, 1),
    "aten::baddbmm": (1, 2),
}
WIDTHS = {"c10::BFloat16": 2, "c10::Half": 2, "float": 4, "double": 8}
"""Bytes of an element, by type."""

# What good kernels reach of the peaks, and the shortest that one takes.
_REACHED = 0.6
_LEAST_NS = 5000.0
_SHAPES = {
    "left": pl.List(pl.Int64()),
    "right": pl.List(pl.Int64()),
    "type": pl.String(),
    "rows": pl.List(pl.Int64()),
    "flops": pl.Float64(),
    "moved": pl.Float64(),
}


@cached_per_trace
def products(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels that compute matrix products, with what they compute.

    Added are ``product``, the op; ``left`` and ``right``, the shapes of the matrices;
    ``type``; ``rows``, how many elements lie between one row (or column) and the next
    in the matrices and in the result, or just the sizes where strides are not recorded;
    ``flops`` and ``moved``, the operations and bytes of the product. Shapes are none
    where they were not recorded. Convolutions are no products here.
    """
    names = plain_names(trace.ops).filter(pl.col("plain").is_in(PRODUCTS))
    ops = trace.ops.join(names, on="name").select("inputs", op="id", product="plain")
    calls = kernels.filter(pl.col("kind") == "gemm").join(
        ops, on="op", maintain_order="left"
    )
    distinct = calls.select("product", "inputs").unique(maintain_order=True)
    known = distinct.join(
        trace.inputs.select("dims", "types", "strides", inputs="id"),
        on="inputs",
        how="left",
        maintain_order="left",
    )
    shapes = pl.DataFrame(
        [_shapes(row) for row in known.iter_rows(named=True)],
        schema=_SHAPES,
        orient="row",
    )
    return calls.join(
        pl.concat([distinct, shapes], how="horizontal"),
        on=["product", "inputs"],
        how="left",
        nulls_equal=True,
        maintain_order="left",
    ).drop("inputs")


def _shapes(row: dict[str, Any]) -> tuple[Any, ...]:
    nothing = (None,) * len(_SHAPES)
    one, two = PRODUCTS[row["product"]]
    try:
        left, right = row["dims"][one], row["dims"][two]
        kind = row["types"][one]
        *batch, high, deep = left
        wide = right[-1]
    except (IndexError, TypeError, ValueError):
        # Shapes that are missing, or not those of the op's schema.
        return nothing
    rows = [high, deep, wide]
    if row["strides"]:
        rows = [_row(row["strides"][one]), _row(row["strides"][two]), wide]
    count = 1
    for size in batch:
        count *= size
    moved = count * (high * deep + deep * wide + high * wide) * WIDTHS.get(kind, 0)
    return left, right, kind, rows, 2.0 * count * high * deep * wide, float(moved)


def _row(strides: list[int]) -> int:
    """Return how far apart rows are, or columns, whichever memory has the other of."""
    return max(strides[-2:])


def fastest(peak: Peak | None, dtype: str) -> pl.Expr | None:
    """Return in how many nanoseconds good kernels compute a product, if that is known.

    They reach 60% of the GPU's rate, or of its bandwidth, whichever is slower.
    """
    if peak is None or dtype not in peak.flops:
        return None
    computing = pl.col("flops") / (_REACHED * peak.flops[dtype])
    moving = pl.col("moved") / (_REACHED * peak.bandwidth)
    best = pl.max_horizontal(computing * 1e9, moving * 1e9, pl.lit(_LEAST_NS))
    return pl.when(pl.col("flops").is_not_null()).then(best)


def saved(
    calls: pl.DataFrame, peak: Peak | None, dtype: str, otherwise: float = 0.5
) -> pl.DataFrame:
    """Add ``saved``: the nanoseconds that good kernels would save, never below none.

    Where it is not known how fast they are, it is a share of the time.
    """
    guess = otherwise * pl.col("dur")
    best = fastest(peak, dtype)
    if best is None:
        return calls.with_columns(saved=guess)
    known = (pl.col("dur") - best).clip(lower_bound=0.0)
    return calls.with_columns(saved=pl.coalesce(known, guess))
