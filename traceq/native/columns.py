"""Columns between Polars and native code: Arrow's C data interface, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.native import available

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceq.native._native import Column

# Arrow's letters for them, as in the C sources.
_DTYPES = {"I": pl.UInt32, "l": pl.Int64, "g": pl.Float64}


class _ArrowColumn:
    """A column that native code made, as Polars takes it."""

    def __init__(self, capsules: Column) -> None:
        self._capsules = capsules

    def __arrow_c_array__(self, requested_schema: object = None) -> Column:
        return self._capsules


def to_series(column: Column) -> pl.Series:
    """Return a column that native code made."""
    return pl.Series(_ArrowColumn(column))


def native_columns(
    formats: str, columns: Iterable[pl.Series]
) -> tuple[pl.Series, ...] | None:
    """Return columns as native code takes them: one chunk each, without nulls.

    None where native code is not used, or a column has nulls or is not of its format,
    which is ``I`` (UInt32), ``l`` (Int64) or ``g`` (Float64): the twin is used then.
    """
    if not available():
        return None
    taken = tuple(columns)
    for letter, column in zip(formats, taken, strict=True):
        if column.dtype != _DTYPES[letter] or column.null_count():
            return None
    return tuple(column.rechunk() for column in taken)
