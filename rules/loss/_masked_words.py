"""Heads whose loss reads all positions, in models that see both sides of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import asof, named_like, nth, text

if TYPE_CHECKING:
    from traceq.linter import View

# Classes of heads for masked words.
_MASKED = r"(?i)mask(ed)?_?lm|LMPrediction|mlm"
_LOSS = r"^aten::(cross_entropy_loss|nll_loss\w*|_?log_softmax)(\.|$)"
_ATTENTION = r"^aten::scaled_dot_product_attention$"
_MASK, _CAUSAL = 3, 5


def sees_both_sides(view: View, heads: pl.DataFrame) -> bool:
    """Return whether a model is of masked words by name, or by its attention.

    Attention without a mask that is not causal sees both sides; of a mask nothing is
    known.
    """
    modules = view.trace.ops["module"][heads["op"]].cast(pl.String)
    if modules.str.contains(_MASKED).any():
        return True
    calls = view.ops.filter(named_like(view.ops, _ATTENTION))
    if not calls.height:
        return False
    plain = (nth("values", _CAUSAL) == "False") & nth("types", _MASK).is_in(
        ["", "None"]
    )
    return bool(view.with_inputs(calls).select(plain.all()).item())


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
