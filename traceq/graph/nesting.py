"""Nesting of events on a thread, without a loop over events.

Events are in pre-order: by thread, then start, the longest first. Then the parent of an
event is the nearest one before it on its thread that ends no earlier. All events search
for theirs at once: each points at the last event before it that has any inside and, as
long as that one ends too early, jumps to where that one points. Pointers of events that
are still searching double their reach with every round, so rounds are few.
"""

from __future__ import annotations

import polars as pl

from traceq.common.expressions import constant, rows_where
from traceq.native import _native
from traceq.native.columns import native_columns, to_series

INDEX = pl.UInt32()
_FOR_EVER = 2**63 - 1
_NONE = pl.Series([None], dtype=INDEX)


def row_numbers(count: int) -> pl.Series:
    """Return 0, 1, … as indices."""
    return pl.int_range(count, dtype=INDEX, eager=True)


def in_preorder(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows by ``thread``, then ``ts``, the longest first; else as they are."""
    rows = rows.rechunk()
    columns = native_columns("Ill", rows[["thread", "ts", "end"]])
    # None where the numbers of threads are too large.
    if columns and (order := _native.preorder(*columns)) is not None:
        return rows[to_series(order)]
    return rows.sort("thread", "ts", -pl.col("end"), maintain_order=True)


def parents(thread: pl.Series, end: pl.Series) -> pl.Series:
    """Return the row of each event's parent, if any; events are in pre-order."""
    nowhere = len(end)
    if columns := native_columns("Il", (thread, end)):
        around = to_series(_native.parents(nowhere, *columns))
        return _none_where_nowhere(around, nowhere)
    rows = row_numbers(len(end))
    same = thread == thread.shift(1)
    # Who is around any has the next one inside: all others are never jumped to.
    is_around = (same & (end <= end.shift(1))).shift(-1)
    last = (
        pl.when(is_around).then(rows).when(~same.shift(-1)).then(pl.lit(nowhere, INDEX))
    )
    before = pl.select(last.forward_fill().shift(1).fill_null(nowhere)).to_series()
    jump = _with_nowhere(before)
    # What is nowhere lasts for ever: nobody looks any further.
    ends = pl.concat([end, pl.Series([_FOR_EVER], dtype=end.dtype)], rechunk=True)
    looking = rows.filter(ends[jump[:-1]] < end)
    # What is known of those that are looking is kept beside them, not looked up again.
    own_end, at = end[looking], jump[looking]
    while len(looking):
        at = jump[at]
        jump = jump.scatter(looking, at)
        still = ends[at] < own_end
        looking, own_end, at = (
            looking.filter(still),
            own_end.filter(still),
            at.filter(still),
        )
    return _without_nowhere(jump)


def parents_or(thread: pl.Series, end: pl.Series, nowhere: int) -> pl.Series:
    """Return for each event, in pre-order, the row around it, or ``nowhere``."""
    if columns := native_columns("Il", (thread, end)):
        return to_series(_native.parents(nowhere, *columns))
    return parents(thread, end).fill_null(nowhere)


def nearest(parent: pl.Series, marked: pl.Series) -> pl.Series:
    """Return for each row itself, if it is marked, or its nearest marked ancestor."""
    if not marked.any():
        return _NONE.new_from_index(0, len(parent))
    # As fill_null() does, but without planning a query.
    above = parent.zip_with(parent >= 0, _numbers(len(parent)))
    targets = _with_nowhere(row_numbers(len(parent)).zip_with(marked, above))
    return _without_nowhere(arrived(targets))


def upwards(parent: pl.Series) -> pl.Series:
    """Return each row's parent in the form for ``nearest_of``, for repeated use."""
    return _with_nowhere(parent.zip_with(parent >= 0, _numbers(len(parent))))


def nearest_of(up: pl.Series, rows: pl.Series) -> pl.Series:
    """Return for each row itself, if it is one of these, or its nearest such ancestor.

    ``up`` is of ``upwards``. Of few rows it takes half of the time of ``nearest``.
    """
    if not len(rows):
        return _NONE.new_from_index(0, len(up) - 1)
    # Whoever is one of them leads nowhere else; the clone is what is written to.
    return _without_nowhere(arrived(up.clone().scatter(rows, rows)))


def marked_at(marked: pl.Series, rows: pl.Series) -> pl.Series:
    """Return ``marked[rows]`` of many rows; an unknown row is not marked.

    Bytes are looked up faster than bits, and five times faster in a column that never
    had a null in it: a mask often had, before that was made known.
    """
    bytes_ = constant(0, len(marked), pl.UInt8).scatter(rows_where(marked), 1)
    return bytes_[rows] == 1


def arrived(leads: pl.Series) -> pl.Series:
    """Return the end of the chain from each row; each row leads to one, or itself."""
    columns = native_columns("I", [leads])
    # None where a row leads to a later one, other than the last.
    if columns and (ends := _native.arrived(*columns)) is not None:
        return to_series(ends)
    while True:
        further = leads[leads]
        if further.equals(leads):
            return leads
        leads = further


def depth(parent: pl.Series) -> pl.Series:
    """Return the number of ancestors of each row."""
    nowhere = len(parent)
    # As fill_null() does, but without planning a query.
    up = _with_nowhere(parent.zip_with(parent >= 0, _numbers(nowhere)))
    depths = (up < nowhere).cast(INDEX)
    while not (up == nowhere).all():
        depths += depths[up]
        up = up[up]
    return depths[:-1]


# Looking up rows of which some are none takes several times as long: meanwhile none is
# the row behind all others.


def _with_nowhere(rows: pl.Series) -> pl.Series:
    """Return the rows with one more, which is nowhere and leads there."""
    return pl.concat([rows, _numbers(len(rows))], rechunk=True)


def _without_nowhere(rows: pl.Series) -> pl.Series:
    """Return the rows without the last one, none where they are nowhere."""
    return _none_where_nowhere(rows[:-1], len(rows) - 1)


def _none_where_nowhere(rows: pl.Series, nowhere: int) -> pl.Series:
    # As when() does, but without planning a query.
    return rows.zip_with(rows < nowhere, _NONE)


def _numbers(*values: int) -> pl.Series:
    return pl.Series(values, dtype=INDEX)


def self_times(
    thread: pl.Series, start: pl.Series, end: pl.Series, parent: pl.Series
) -> pl.Series:
    """Return the self time of each event: it was the innermost one.

    Each instant goes to the event that started last of those still open, so that the
    times of a thread add up to the time covered on it, even where events overlap
    without one enclosing the other.
    """
    if _siblings_cross(thread, start, end, parent):
        return _innermost_times(thread, start, end, parent)
    return end - start - sums_of(parent, end - start, len(end))


def sums_of(row: pl.Series, value: pl.Series, rows: int) -> pl.Series:
    """Return for each row the sum of the values that refer to it.

    Values that are of no row are left out.
    """
    if row.null_count():
        # As drop_nulls() does, but without planning a query.
        row, value = row.filter(row >= 0), value.filter(row >= 0)
    if columns := native_columns("Il", (row, value)):
        return to_series(_native.sums(rows, *columns))
    sums = (
        pl.DataFrame([row, value], ["row", "value"])
        .group_by("row")
        .agg(pl.sum("value"))
    )
    none = pl.repeat(0, rows, dtype=pl.Int64, eager=True)
    return none.scatter(sums["row"], sums["value"])


def counts_between(edges: pl.Series, moments: pl.Series) -> pl.Series:
    """Return the number of moments, in any order, between consecutive sorted edges."""
    return moments.sort().search_sorted(edges).cast(pl.Int64).diff()[1:]


def _siblings_cross(
    thread: pl.Series, start: pl.Series, end: pl.Series, parent: pl.Series
) -> bool:
    """Return whether any event begins inside another and outlasts it."""
    family = pl.DataFrame(
        {"thread": thread, "parent": parent, "start": start, "end": end}
    )
    # Of two siblings the later one ends later, or it would be the other's child. Those
    # without a parent stay sorted by thread, as all are in pre-order.
    after = family.sort("parent", maintain_order=True).select(
        sibling=pl.col("thread").eq_missing(pl.col("thread").shift(1))
        & pl.col("parent").eq_missing(pl.col("parent").shift(1)),
        early=pl.col("start") < pl.col("end").shift(1),
    )
    return after.select((pl.col("sibling") & pl.col("early")).any()).item() is True


def _innermost_times(
    thread: pl.Series, start: pl.Series, end: pl.Series, parent: pl.Series
) -> pl.Series:
    rows = row_numbers(len(end))
    moments = (
        pl.concat(
            [
                pl.DataFrame({"thread": thread, "time": start, "started": rows}),
                pl.DataFrame({"thread": thread, "time": end}).with_columns(
                    pl.lit(None, INDEX).alias("started")
                ),
            ]
        )
        # At one moment starts come first; in pre-order, so that the innermost is last.
        .sort("thread", "time", "started", nulls_last=True, maintain_order=True)
        .with_columns(
            innermost=pl.col("started").forward_fill(),
            length=(pl.col("time").shift(-1) - pl.col("time")).over("thread"),
        )
        .filter(pl.col("length") > 0)
    )
    innermost, time = moments["innermost"], moments["time"]
    at = row_numbers(len(innermost))
    ended = at.filter(end[innermost] <= time)
    while len(ended):
        above = parent[innermost[ended]]
        innermost = innermost.scatter(ended, above)
        still = (end[above] <= time[ended]).fill_null(value=False)
        ended = ended.filter(still)
    return sums_of(innermost, moments["length"], len(end))
