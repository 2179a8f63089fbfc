"""Lengths of time covered by intervals, each instant counted once."""

from __future__ import annotations

import polars as pl


def covered(start: pl.Expr, end: pl.Expr, by: list[str] | None = None) -> pl.Expr:
    """How much each interval adds to what the intervals before it have covered.

    The rows must be sorted by ``start``, within ``by`` if that is given; the sum of
    the result is the length of the intervals' union.
    """
    reached = end.cum_max().shift(1)
    if by:
        reached = reached.over(by)
    return (end - pl.max_horizontal(start, reached)).clip(lower_bound=0)
