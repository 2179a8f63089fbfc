"""Copies of operands of batched matmuls whose batch dims come last in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import Evidence, at_function, nth, shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import View

# A kernel of matmuls steps through a matrix along its rows or its columns.
_MATMULS = ("aten::bmm", "aten::baddbmm")
_EINSUM = "aten::einsum"
_DIMS = 3
_MOST_NAMED = 4
ADVICE = (
    "keep tensors that are multiplied with their batch dims first in memory: let einsum"
    " make its result as batch, heads, rows, columns (…->bnij in place of …->ijbn),"
    " give it its operands the same way, and let what is between them, as a mask, a"
    " softmax or its dim, follow; elsewhere make them so once, before they are used"
    " several times"
)


def batch_last(view: View) -> pl.DataFrame:
    """Return the copies of operands in which only the batch dim has a stride of 1.

    ``matmul`` is the op that copies, inside of an einsum or not.
    """
    moved = view.copies.filter(
        ~pl.col("cast"),
        pl.col("dims").list.len() == _DIMS,
        pl.col("dims").list.min() > 1,
        nth("src_strides", 0) == 1,
        nth("src_strides", 1) > 1,
        nth("src_strides", 2) > 1,
    )
    if not moved.height:
        return moved.with_columns(matmul=pl.lit(None, pl.UInt32), einsum=False)
    around = view.roots(pl.col("name").is_in(_MATMULS))[moved["op"]]
    einsum = view.roots(pl.col("name") == _EINSUM)
    forward = view.trace.ops["forward"][around]
    of_einsum = einsum[around].is_not_null() | einsum[forward].is_not_null()
    return moved.with_columns(matmul=around, einsum=of_einsum).filter(
        pl.col("matmul").is_not_null()
    )


def operand_lines(view: View, copied: pl.DataFrame) -> Iterator[Evidence]:
    """Yield which operands are copied, those that take longest first."""
    names = view.trace.ops["name"][copied["matmul"]].cast(pl.String)
    backward = pl.col("phase") == "backward"
    groups = (
        copied.with_columns(name=names, back=backward)
        .group_by("name", "einsum", "back", "dims", "file", "line", "function")
        .agg(time=pl.col("dur").sum(), calls=pl.len())
        .sort("time", "name", "back", "dims", descending=[True, *[False] * 3])
    )
    for row in groups.head(_MOST_NAMED).iter_rows(named=True):
        within = f" in {_EINSUM}" if row["einsum"] else ""
        place = at_function(row["file"], row["line"], row["function"])
        notes = ["in the backward"] * row["back"] + [place] * bool(place)
        yield Evidence(
            "copy",
            f"{row['name']}{within} {shape(row['dims'])}",
            value=row["time"] / view.steps,
            unit="ns",
            note="a step" + (f" ({', '.join(notes)})" if notes else ""),
            count=row["calls"] / view.steps,
        )
