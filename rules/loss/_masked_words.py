"""Heads whose loss reads all positions, in models that see both sides of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import asof, fill_false, named_like, nth, text

if TYPE_CHECKING:
    from traceq.linter import View

# Classes of heads for masked words.
_MASKED = r"(?i)mask(ed)?_?lm|LMPrediction|mlm"
_LOSS = r"^aten::(cross_entropy_loss|nll_loss\w*|_?log_softmax)(\.|$)"
_ATTENTION = r"^aten::scaled_dot_product_attention$"
_MASK, _CAUSAL = 3, 5


def of_both_sides(view: View, heads: pl.DataFrame) -> pl.DataFrame:
    """Return the heads of masked words, by the name of their modules or by attention.

    Attention without a mask that is not causal sees both sides; of a mask nothing is
    known. A head is then of all of its positions, and no classifier of a sequence.
    """
    modules = view.trace.ops["module"][heads["op"]].cast(pl.String)
    named = modules.str.contains(_MASKED).fill_null(value=False)
    calls = view.with_inputs(view.ops.filter(named_like(view.ops, _ATTENTION)))
    free = (nth("values", _CAUSAL) == "False") & nth("types", _MASK).is_in(["", "None"])
    if not calls.height or not calls.select(fill_false(free).all()).item():
        return heads.filter(named)
    batch, length = (nth("dims", 0).list.get(at, null_on_oob=True) for at in (0, -2))
    positions = calls.select(batch * length).to_series().drop_nulls().unique()
    return heads.filter(named | heads["rows"].is_in(positions.implode()))


def with_loss(view: View, heads: pl.DataFrame) -> pl.DataFrame:
    """Return the heads whose logits go to a cross entropy: all of their positions."""
    losses = view.ops.filter(
        named_like(view.ops, _LOSS), text("phase").ne_missing("backward")
    )
    shapes = view.with_inputs(losses).select(
        "thread", "ts", columns=nth("dims", 0).list.last()
    )
    of_heads = asof(
        shapes.drop_nulls(),
        heads.select("op", "thread", "columns", begun="ts"),
        "ts",
        "begun",
        by=["thread", "columns"],
    )["op"]
    return heads.filter(pl.col("op").is_in(of_heads.drop_nulls().implode()))
