"""Stateful loops over columns, by compiled code where it was built.

Each function returns None where it was not built, and for columns that it does not
take; then the caller does the same in Polars, several times slower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.common.native_loading import Arrow, usable

if TYPE_CHECKING:
    from collections.abc import Sequence

try:
    from traceq.graph import _sweep
except ImportError:  # it was not built
    _sweep = None  # type: ignore[assignment]  # a module, where it was

# What was built of another state of its source is left alone.
_INTERFACE = 10
_NO_RANK = 2**32 - 1
_TREE = ["ts", "end", "part", "row", "thread", "code", "parent"]


def available() -> bool:
    """Return whether compiled code is available."""
    return usable(_sweep, _INTERFACE)


def preorder(thread: pl.Series, start: pl.Series, end: pl.Series) -> pl.Series | None:
    """Return the rows by thread, then start, the longest first; else as they are."""
    columns = _columns((thread, pl.UInt32), (start, pl.Int64), (end, pl.Int64))
    return None if columns is None else _series(_sweep.preorder(*columns))


def parents(thread: pl.Series, end: pl.Series, nowhere: int) -> pl.Series | None:
    """Return the row of each event's parent, or ``nowhere``, in pre-order."""
    columns = _columns((thread, pl.UInt32), (end, pl.Int64))
    return None if columns is None else _series(_sweep.parents(nowhere, *columns))


def tree(
    threads: int, ranks: pl.Series, tables: Sequence[Sequence[pl.Series]]
) -> pl.DataFrame | None:
    """Return the rows of tables that take time, in pre-order, and nothing at the end.

    Of each table there are ``thread``, ``ts``, ``dur``, ``id`` and a number of each
    row; ``ranks`` are those of this many threads, none for all others. A row has
    ``ts``, ``end``, ``part`` (which table), ``row`` (its id), ``thread`` (its rank),
    ``code`` (by number and table) and ``parent``, the row around it, or the last one.
    """
    types = (pl.UInt32, pl.Int64, pl.Int64, pl.UInt32, pl.UInt32)
    columns = _columns(
        (ranks.fill_null(_NO_RANK), pl.UInt32),
        *(pair for table in tables for pair in zip(table, types, strict=True)),
    )
    if columns is None:
        return None
    found = [pl.Series(Arrow(*one)) for one in _sweep.tree(threads, *columns)]
    return pl.DataFrame(found, _TREE)


def depths(up: pl.Series) -> pl.Series | None:
    """Return how many rows are around each, given the one around it, or their count.

    None also where one is not behind the one around it.
    """
    columns = _columns((up, pl.UInt32))
    return None if columns is None else _series(_sweep.depths(*columns))


def arrived(leads: pl.Series) -> pl.Series | None:
    """Return where one arrives from each row, if each leads to one before, or itself.

    All may lead to the last row, too.
    """
    columns = _columns((leads, pl.UInt32))
    return None if columns is None else _series(_sweep.arrived(*columns))


def numbered(code: pl.Series, parent: pl.Series) -> tuple[pl.Series, pl.Series] | None:
    """Return a number for each row, and the first row of each number.

    Rows have the same number that have the same code in rows with the same codes, all
    the way up. They are in pre-order; the last one is nothing, and around all others.
    """
    columns = _columns((code, pl.UInt32), (parent, pl.UInt32))
    return None if columns is None else _two_series(_sweep.numbered(*columns))


def counted(key: pl.Series) -> tuple[pl.Series, pl.Series] | None:
    """Return a number for each key, as they come first, and the first row of each."""
    columns = _columns((key, pl.UInt64))
    return None if columns is None else _two_series(_sweep.counted(*columns))


def segments(
    tree: pl.DataFrame, edges: pl.DataFrame, threads: int
) -> pl.DataFrame | None:
    """Return what is open, one segment after the other: ``start``, ``end``, ``at``.

    ``tree`` is in pre-order: ``ts``, ``end``, ``parent`` and ``thread``; behind its
    last row is nothing. What counts is open in the first thread that has anything open.
    A segment ends where something else counts, and at ``edges``, which are in order;
    there is none from an edge on at which ``inside`` is 0.
    """
    columns = _columns(
        *((tree[side], pl.Int64) for side in ("ts", "end")),
        *((tree[row], pl.UInt32) for row in ("parent", "thread")),
        (edges["time"], pl.Int64),
        (edges["inside"], pl.UInt32),
    )
    if columns is None:
        return None
    found = _sweep.segments(tree.height, threads, *columns)
    if found is None:
        return None
    columns = [pl.Series(Arrow(*one)) for one in found]
    return pl.DataFrame(columns, ["start", "end", "at"])


def sums(row: pl.Series, value: pl.Series, rows: int) -> pl.Series | None:
    """Return for each row the sum of the values that refer to it."""
    columns = _columns((row, pl.UInt32), (value, pl.Int64))
    return None if columns is None else _series(_sweep.sums(rows, *columns))


def counts(edges: pl.Series, moments: pl.Series) -> pl.Series | None:
    """Return the number of moments between edges; the edges are in order."""
    columns = _columns((edges, pl.Int64), (moments, pl.Int64))
    return None if columns is None else _series(_sweep.counts(*columns))


def _columns(*columns: tuple[pl.Series, type[pl.DataType]]) -> list[pl.Series] | None:
    """Return columns as compiled code takes them, if they are of these types."""
    if not available():
        return None
    if any(one.dtype != dtype or one.null_count() for one, dtype in columns):
        return None
    return [one.rechunk() for one, _ in columns]


def _series(made: tuple[object, object] | None) -> pl.Series | None:
    return None if made is None else pl.Series(Arrow(*made))


def _two_series(
    made: tuple[tuple[object, object], tuple[object, object]] | None,
) -> tuple[pl.Series, pl.Series] | None:
    return (
        None
        if made is None
        else (pl.Series(Arrow(*made[0])), pl.Series(Arrow(*made[1])))
    )
