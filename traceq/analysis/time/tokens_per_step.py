"""Tokens per step, from the embedding lookup or from the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import polars as pl

from traceq.analysis.base.ownership import named
from traceq.analysis.base.steady import in_steps, steady_steps

if TYPE_CHECKING:
    from traceq.model.trace import Trace

TokensFrom = Literal["embedding", "cross-entropy"]
EMBEDDING: TokensFrom = "embedding"
_LOOKUP = ("aten::embedding",)
_LOSS = ("aten::nll_loss_forward", "aten::nll_loss2d_forward")


@dataclass(frozen=True)
class Tokens:
    """Mean number of tokens, or of other items, of a step."""

    per_step: float
    source: TokensFrom
    """Rows looked up in an embedding are tokens; targets of a cross-entropy may be
    tokens, images or pixels: nobody says which."""

    def per_second(self, step_ns: float) -> float:
        """Return the rate if a step takes this long."""
        return self.per_step / step_ns * 1e9 if step_ns else 0.0


def tokens_of(trace: Trace) -> Tokens | None:
    """Return the tokens of a step; none without shapes or where they are unknown."""
    if tokens := tokens_per_step(trace):
        return Tokens(tokens, EMBEDDING)
    targets = int(_second_inputs(trace, _LOSS)["rows"].sum())
    each = targets / steady_steps(trace).count
    return Tokens(each, "cross-entropy") if targets else None


def tokens_per_step(trace: Trace) -> float | None:
    """Return the rows that a step looks up in its largest table, the vocabulary.

    Positions, their distances and token types are looked up in smaller tables. None
    without shapes, and where nothing is looked up: then nobody says what a token is.
    """
    entries = pl.col("table").list.eval(pl.element().product()).list.first()
    lookups = (
        _second_inputs(trace, _LOOKUP)
        .group_by("table")
        .agg(pl.col("rows").sum())
        .sort(entries, "rows")
    )
    rows = lookups["rows"].last() if lookups.height else None
    return rows / steady_steps(trace).count if isinstance(rows, int) and rows else None


def _second_inputs(trace: Trace, names: tuple[str, ...]) -> pl.DataFrame:
    """Return calls of ops by the shape of their first input and the second's size."""
    called = trace.ops.filter(named(trace.ops, names) & ~trace.ops["compiling"])
    dims = pl.col("dims")
    sizes = dims.list.get(1, null_on_oob=True).list.eval(pl.element().product())
    return (
        in_steps(called, trace, steady_steps(trace))
        .join(trace.inputs.select("dims", inputs="id"), on="inputs")
        .select(table=dims.list.first(), rows=sizes.list.first())
        .drop_nulls()
    )
