"""Kernels of torch.compile that copy a matrix to pad it, for the matmul after them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import NOTHING, named_like

if TYPE_CHECKING:
    from traceq.linter import Trace

# A pointwise kernel cannot compute a matmul: one that is named after it pads for it.
_PADS = r"^triton_poi_fused_(\w+_)?(add|b|badd)?mm_"
# Inductor pads to what tensor cores load at once: 8 elements of 16 bits, 4 of 32.
_ALIGNED = (8, 4)


def matmul_padding(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels that pad for a matmul, with ``size`` and ``padded``.

    ``size`` is the dimension that is not aligned, ``padded`` what it is padded to. A
    kernel whose shapes show no such dimension is not returned.
    """
    ops = trace.ops[["inputs", "id"]].filter(named_like(trace.ops, _PADS))
    if not ops.height:
        return NOTHING
    ops = ops.rename({"id": "op"})
    shapes = trace.inputs.filter(pl.col("id").is_in(ops["inputs"].unique().implode()))
    paddings = [
        (key, *pair)
        for key, dims in shapes.select("id", "dims").iter_rows()
        if (pair := _padded(dims or []))
    ]
    sizes = pl.DataFrame(
        paddings,
        schema={"inputs": pl.UInt32, "size": pl.Int64, "padded": pl.Int64},
        orient="row",
    )
    return kernels.join(ops.join(sizes, on="inputs"), on="op", maintain_order="left")


def _padded(dims: list[list[int]]) -> tuple[int, int] | None:
    """Return a size that one tensor has and another one has rounded up.

    >>> _padded([[32003, 768], [768, 32008], []])
    (32003, 32008)
    >>> _padded([[32000, 768], [768, 32000], []]) is None
    True
    """
    sizes = {size for dim in dims for size in dim or ()}
    for aligned in _ALIGNED:
        for size in sorted(sizes, reverse=True):
            up = -(-size // aligned) * aligned
            if up != size and up in sizes:
                return size, up
    return None
