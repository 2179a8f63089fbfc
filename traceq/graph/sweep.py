"""Loops over columns that carry a state along, by compiled code where it was built.

Each returns None where it was not, and for columns that it does not take; then the
caller does the same in Polars, several times slower.
"""

from __future__ import annotations

import polars as pl

from traceq.compiled_code import Arrow, usable

try:
    from traceq.graph import _sweep
except ImportError:  # it was not built
    _sweep = None  # type: ignore[assignment]  # a module, where it was

# What was built of another state of its source is left alone.
_INTERFACE = 1


def available() -> bool:
    """Return whether there is compiled code."""
    return usable(_sweep, _INTERFACE)


def parents(thread: pl.Series, end: pl.Series) -> pl.Series | None:
    """Return for each event, in pre-order, the row around it; their number if none."""
    if not available() or not (_fits(thread, pl.UInt32) and _fits(end, pl.Int64)):
        return None
    return _series(_sweep.parents(thread.rechunk(), end.rechunk()))


def arrived(leads: pl.Series) -> pl.Series | None:
    """Return where one arrives from each row, if each leads to one before, or itself.

    All may lead to the last row, too.
    """
    if not available() or not _fits(leads, pl.UInt32):
        return None
    return _series(_sweep.arrived(leads.rechunk()))


def moments(tree: pl.DataFrame, edges: pl.Series, nobody: int) -> pl.DataFrame | None:
    """Return what is open from each moment on: ``time``, ``at`` and ``rank``.

    ``tree`` is in pre-order: ``ts``, ``end``, ``parent`` and ``thread``; behind its
    last row is nothing. At one moment ends come first, the last row's first, then
    starts, then ``edges``, which are in order and of the thread ``nobody``.
    """
    numbers = (tree["ts"], tree["end"], edges)
    places = (tree["parent"], tree["thread"])
    if (
        not available()
        or not all(_fits(column, pl.Int64) for column in numbers)
        or not all(_fits(column, pl.UInt32) for column in places)
    ):
        return None
    start, end, edge = (column.rechunk() for column in numbers)
    parent, thread = (column.rechunk() for column in places)
    made = _sweep.moments(start, end, parent, thread, edge, tree.height, nobody)
    if made is None:
        return None
    columns = [pl.Series(Arrow(*one)) for one in made]
    return pl.DataFrame(columns, ["time", "at", "rank"])


def _fits(column: pl.Series, dtype: type[pl.DataType]) -> bool:
    return column.dtype == dtype and not column.null_count()


def _series(made: tuple[object, object] | None) -> pl.Series | None:
    return None if made is None else pl.Series(Arrow(*made))
