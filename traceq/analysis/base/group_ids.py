"""Group ids for rows that are equal in several columns."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from traceq.common.expressions import constant
from traceq.graph.nesting import INDEX, row_numbers

# The largest number that rows are compared by.
_LARGEST = 2**64 - 1
# A table of all possible keys, up to this many for each row, is three times faster than
# hashing them.
_DENSE = 4


class Alike(NamedTuple):
    """Rows grouped by equal values."""

    number: pl.Series
    """For each row a number that only those have that are the same as it."""
    first: pl.Series
    """The first row of each number."""


def alike(*columns: pl.Series) -> Alike:
    """Return group ids of the rows that are equal in all these columns.

    All values of a row are one number, as digits are: rows are much faster to compare
    by that than by many columns. Where it would be too large, it is counted again.
    """
    (key, size), *others = map(_digits, map(_number, columns))
    key = key.cast(pl.UInt64)
    for values, count in others:
        if size * count > _LARGEST:
            key, first = counted(key)
            key, size = key.cast(pl.UInt64), len(first)
        key = key * count + values
        size *= count
    return counted(key, size)


def _number(values: pl.Series) -> pl.Series:
    # Of what is a number already, to_physical() would plan a query.
    of_texts = isinstance(values.dtype, (pl.Categorical, pl.Enum))
    return (values.to_physical() if of_texts else values).cast(INDEX)


def _digits(values: pl.Series) -> tuple[pl.Series, int]:
    """Return numbers with none as one of them, and how many there may be."""
    largest = values.max()
    count = 1 + (largest if isinstance(largest, int) else 0)
    if not values.null_count():
        return values, count
    # Not by fill_null(): the number may be too large for the type.
    nothing = pl.Series([count], dtype=pl.UInt64)
    return values.cast(pl.UInt64).zip_with(values >= 0, nothing), count + 1


def counted(key: pl.Series, size: int | None = None) -> Alike:
    """Return a small number for each key, in the order in which keys come first.

    All keys are below ``size``, where that is known.
    """
    rows = row_numbers(len(key))
    if size is not None and size <= _DENSE * len(key):
        # Backwards, so that the first row of a key is the last one written.
        firsts_by_key = constant(0, size, INDEX).scatter(key.reverse(), rows.reverse())
        first = firsts_by_key[key]
    else:
        first = (
            pl.DataFrame({"row": rows, "key": key})
            .select(pl.col("row").min().over("key"))
            .to_series()
        )
    firsts = (first == rows).arg_true()
    number = rows.scatter(firsts, row_numbers(len(firsts)))
    return Alike(number[first], firsts)
