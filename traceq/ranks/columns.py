"""Typed scalars from columns."""

from __future__ import annotations

import polars as pl


def lowest(column: pl.Series) -> int:
    """Return the least; 0 of none."""
    return int(column.to_frame("one").select(pl.col("one").min()).item() or 0)


def highest(column: pl.Series) -> int:
    """Return the largest; 0 of none."""
    return int(column.to_frame("one").select(pl.col("one").max()).item() or 0)


def total(column: pl.Series) -> int:
    """Return the sum."""
    return int(column.to_frame("one").select(pl.col("one").sum()).item() or 0)


def median(column: pl.Series) -> float:
    """Return the median; 0 of none."""
    return float(column.to_frame("one").select(pl.col("one").median()).item() or 0)
