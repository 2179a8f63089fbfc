"""Ops that read the weights of handwritten attention, beside its second matmul."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import END, at_function, fill_false, named, nth, text

if TYPE_CHECKING:
    from traceq.linter import Row, View

_MATMULS = ("aten::bmm", "aten::baddbmm")
_AROUND = ("aten::matmul", "aten::einsum")
_READ = (
    "its weights are read by {name}{where}, and SDPA returns none: check which layers"
    " and steps need them, and call SDPA in the others"
)


def reading(view: View, row: Row) -> str:
    """Return the advice where an op reads the weights of a call; else nothing.

    That is one with GPU work on a tensor of their shape, or on their mean over heads,
    before the next attention begins, or after the last one of all. Where queries, keys
    or values have that shape too, it tells nothing.
    """
    weights = row["scores"][-2:]
    if any(row[part][-2:] == weights for part in ("query", "key", "value")):
        return ""
    ops = view.trace.ops
    last = ops[["thread", "ts", "dur"]].row(row["last"], named=True)
    ran = ops.filter(
        pl.col("thread") == last["thread"],
        pl.col("ts") >= last["ts"] + last["dur"],
        pl.col("forward").is_null(),
        pl.col("phase").ne_missing("backward"),
    )
    # What a matmul copies before it multiplies is its own.
    multiplied = ran.filter(named(ran, _MATMULS))["id"]
    around = view.roots(pl.col("name").is_in(_AROUND))[multiplied]
    begins = ops["ts"][around.fill_null(multiplied)]
    end = ops.filter(named(ops, _MATMULS), pl.col("thread") == last["thread"])
    window = pl.col("ts") >= end.select(END.max()).item()
    if len(begins):
        window |= pl.col("ts") < begins.min()
    launching = view.kernels["op"].drop_nulls().unique().implode()
    readers = view.with_inputs(
        ran.filter(window, pl.col("id").is_in(launching)).sort("ts")
    ).filter(_of_weights(row))
    if row["by_torch"]:
        # It takes the mean over heads itself, for whoever reads that.
        others = text("module").ne_missing(pl.lit(row["module"]))
        readers = readers.filter(others)
    if not readers.height:
        return ""
    reader = readers.row(0, named=True)
    place = at_function(reader["file"], reader["line"], reader["function"])
    where = f" in {place}" if place else ""
    return _READ.format(name=str(reader["name"]), where=where)


def _of_weights(row: Row) -> pl.Expr:
    """Return whether an op's first input has the shape of weights.

    What torch's module returns is their mean over heads; where it is as wide as the
    hidden states, those are not told apart.
    """
    dims, (queries, keys) = nth("dims", 0), row["scores"][-2:]
    heads = prod(row["scores"][:-2])
    leading = dims.list.head(dims.list.len() - 2).list.eval(pl.element().product())
    count = leading.list.first().fill_null(1)
    as_computed = count == heads
    width = heads // count.clip(1) * row["value"][-1]
    mean = (heads % count.clip(1) == 0) & (width != keys)
    return fill_false(
        (dims.list.get(-2, null_on_oob=True) == queries)
        & (dims.list.last() == keys)
        & ((as_computed | mean) if row["by_torch"] else as_computed)
    )
