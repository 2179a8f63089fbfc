"""Lengths of time covered by intervals, each instant counted once."""

from __future__ import annotations

import polars as pl


def covered(start: pl.Expr, end: pl.Expr) -> pl.Expr:
    """How much each interval adds to what the intervals before it have covered.

    The rows must be sorted by ``start``; the sum of the result is the length of the
    intervals' union.
    """
    reached = end.cum_max().shift(1)
    return (end - pl.max_horizontal(start, reached)).clip(lower_bound=0)
