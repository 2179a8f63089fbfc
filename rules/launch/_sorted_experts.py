"""Loops over experts that run each on a slice of sorted tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import View, fill_false, named, nth

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_CUT = ("aten::slice",)
_WRITE = ("aten::copy_",)
_RUN = ("aten::linear", "aten::mm", "aten::addmm", "aten::matmul")
# The end of a slice that ends where the tensor does.
_TO_THE_END = str(2**63 - 1)
# In most iterations; an expert may have no tokens. Judgement.
_MOST = 0.5


def over_sorted_slices(view: View, row: Mapping[str, Any]) -> bool:
    """Return whether a loop runs weights on slices, and writes to the same ones.

    As in ``y[start:end] = expert(x[start:end])``: layers that are run one after the
    other read what the one before wrote, and not another slice of the same tensor.
    """
    if not {*_CUT, *_WRITE} <= set(row["names"]):
        return False
    ops = view.trace.ops[pl.Series(row["ops"])]
    ops = ops.filter(ops["forward"].is_null()).sort("thread", "ts")
    cuts, writes, runs = (named(ops, names) for names in (_CUT, _WRITE, _RUN))
    begin, end = nth("values", 2), nth("values", 3)
    values = view.trace.inputs[["values"]][ops["inputs"]].select(
        at=pl.concat_str(nth("values", 1), begin, end, separator=":"),
        all=fill_false((begin == "0") & (end == _TO_THE_END)),
    )
    parts = values.with_columns(cuts=cuts, writes=writes, runs=runs.cum_sum())
    parts = parts.filter((pl.col("cuts") & ~pl.col("all")) | pl.col("writes"))
    same = pl.col("at").shift(1) == pl.col("at").shift(2)
    between = pl.col("runs").shift(1) > pl.col("runs").shift(2)
    of_cuts = pl.col("cuts").shift(1) & pl.col("cuts").shift(2)
    matches = parts.select(
        fill_false(pl.col("writes") & of_cuts & same & between).sum()
    )
    return bool(matches.item() >= _MOST * row["iterations"])
