"""Spans of time: how much they cover together, each instant counted once.

A frame of spans has the columns ``start`` and ``end``.
"""

from __future__ import annotations

from typing import Literal

import polars as pl

from traceq.common.expressions import constant, rows_where

# From this many moments on, one pass over times and moments is faster than a search for
# each: 500,000 among 130,000 take 3 ms instead of 30.
_MANY = 1 << 14


def covered(start: pl.Expr, end: pl.Expr, since: pl.Expr | None = None) -> pl.Expr:
    """Return the time that each interval adds to those before it.

    The rows must be sorted by ``start``; the sum of the result is the length of the
    intervals' union. What lies before ``since`` does not count.
    """
    return (end - pl.max_horizontal(start, _reached(end, since))).clip(lower_bound=0)


def uncovered(start: pl.Expr, end: pl.Expr, since: pl.Expr | None = None) -> pl.Expr:
    """Return the time before each interval that no earlier interval covers.

    The rows must be sorted by ``start``. Time counts from ``since`` on, or from the end
    of the first interval.
    """
    return (start - _reached(end, since)).clip(lower_bound=0).fill_null(0)


def _reached(end: pl.Expr, since: pl.Expr | None) -> pl.Expr:
    """Return until when the intervals before each one reach."""
    before = end.cum_max().shift(1)
    return before if since is None else before.fill_null(since)


def spans(events: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of events, which have ``ts`` and ``dur``."""
    start = events["ts"]
    return pl.DataFrame({"start": start, "end": start + events["dur"]})


def disjoint(parts: pl.DataFrame) -> pl.DataFrame:
    """Return the part of each span, in order of start, that no earlier span covers.

    The result has a row for each span, in the order of the starts, so that the
    lengths can be given to whoever a span is of and their sum counts no instant twice.
    """
    if not (parts["start"].is_sorted() and parts["end"].is_sorted()):
        parts = parts.sort("start", "end", maintain_order=True)
    elif not (parts["start"][1:] < parts["end"][:-1]).any():
        # Most are what such a question has returned.
        return parts
    reached = pl.col("end").cum_max().shift(1).fill_null(pl.col("start"))
    return parts.with_columns(
        start=pl.max_horizontal("start", pl.min_horizontal("end", reached))
    )


def joined(parts: pl.DataFrame) -> pl.DataFrame:
    """Return spans that are in order and disjoint, with those that touch as one.

    >>> joined(pl.DataFrame({"start": [0, 2, 5], "end": [2, 4, 6]})).rows()
    [(0, 4), (5, 6)]
    """
    begins = parts["start"].ne_missing(parts["end"].shift(1))
    ends = begins.shift(-1, fill_value=True)
    return pl.DataFrame([parts["start"].filter(begins), parts["end"].filter(ends)])


def merged(parts: pl.DataFrame) -> pl.DataFrame:
    """Return the union of the spans, in order; those that touch are one.

    >>> merged(pl.DataFrame({"start": [4, 0, 1], "end": [6, 3, 4]})).rows()
    [(0, 6)]
    """
    return Cover(parts).spans


def without(parts: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """Return what of spans, in order and disjoint, the others do not cover.

    >>> spans = pl.DataFrame({"start": [0, 8], "end": [6, 9]})
    >>> without(spans, pl.DataFrame({"start": [1, 5], "end": [2, 7]})).rows()
    [(0, 1), (2, 5), (8, 9)]
    """
    holes = merged(others)
    edges = pl.concat([*parts[["start", "end"]], *holes[["start", "end"]]])
    edges = edges.unique().sort()
    cells = pl.DataFrame([edges[:-1].alias("start"), edges[1:].alias("end")])
    inside = (overlap(cells, parts) > 0) & (overlap(cells, holes) == 0)
    return joined(cells.filter(inside))


def overlap(parts: pl.DataFrame, cover: pl.DataFrame) -> pl.Series:
    """Return for each of the spans how much of it the others cover together."""
    return Cover(cover).of(parts)


def covered_until(cover: pl.DataFrame, moments: pl.Series) -> pl.Series:
    """Return the time before each moment that the spans cover together."""
    return Cover(cover).until(moments)


def count_before(times: pl.Series, moments: pl.Series) -> pl.Series:
    """Return the number of the sorted times that are before each moment."""
    return _passed(times, moments, "left")


def count_until(times: pl.Series, moments: pl.Series) -> pl.Series:
    """Return the number of the sorted times that are not after each moment."""
    return _passed(times, moments, "right")


def _passed(
    times: pl.Series, moments: pl.Series, side: Literal["left", "right"]
) -> pl.Series:
    """Return ``times.search_sorted(moments, side)``, fast where both are in order."""
    if (
        len(moments) < _MANY
        or moments.dtype != times.dtype
        or moments.null_count()
        or not moments.is_sorted()
    ):
        return times.search_sorted(moments, side)
    count = pl.int_range(1, len(times) + 1, dtype=pl.UInt32, eager=True)
    passed = pl.DataFrame([times, count], ["time", "count"]).set_sorted("time")
    return (
        moments.to_frame("time")
        .set_sorted("time")
        .join_asof(passed, on="time", allow_exact_matches=side == "right")["count"]
        .fill_null(0)
    )


def holding(events: pl.DataFrame, moments: pl.Series) -> pl.DataFrame:
    """Return the events, of ``ts`` and ``dur``, during which any of the moments is.

    >>> events = pl.DataFrame({"ts": [0, 3, 9], "dur": [3, 4, 2]})
    >>> holding(events, pl.Series([4, 3])).rows()
    [(3, 4)]
    """
    start, dur = events["ts"], events["dur"]
    times = moments.drop_nulls().unique().sort()
    first, after = times.search_sorted(start), times.search_sorted(start + dur)
    return events.filter(after > first)


class Cover:
    """Spans, put in order once, to be asked how much of the time they cover."""

    def __init__(self, cover: pl.DataFrame) -> None:
        """Merge the spans, and keep how much those before each of them cover."""
        start, end = cover["start"], cover["end"]
        lasting = end > start
        if not lasting.all(ignore_nulls=False):
            start, end = start.filter(lasting), end.filter(lasting)
        # Each side is put in order on its own: of as many spans as began before a start
        # all are over by then if that many ends are before it.
        start, end = (
            side if side.is_sorted() else side.sort() for side in (start, end)
        )
        # Not by shift() and filter(), which plan a query each: most covers are small.
        gaps = rows_where(start[1:] > end[:-1])
        self._start = pl.concat([start[:1], start[1:][gaps]], rechunk=True)
        self._end = pl.concat([end[gaps], end[-1:]], rechunk=True)
        self._before = (self._end - self._start).cum_sum().shift(1, fill_value=0)

    @property
    def spans(self) -> pl.DataFrame:
        """The time that is covered: ``start`` and ``end``."""
        return pl.DataFrame([self._start.alias("start"), self._end.alias("end")])

    def of(self, parts: pl.DataFrame) -> pl.Series:
        """Return for each of the spans how much of it is covered."""
        return self.until(parts["end"]) - self.until(parts["start"])

    def until(self, moments: pl.Series) -> pl.Series:
        """Return the covered time before each moment."""
        if not len(self._start):
            return constant(0, len(moments), pl.Int64)
        begun = count_until(self._start[1:], moments)
        start, end = self._start[begun], self._end[begun]
        into = moments.zip_with(moments < end, end) - start
        # As clip() and fill_null() do, but without planning a query.
        nothing = pl.Series([0], dtype=into.dtype)
        covered = self._before[begun] + into.zip_with(into > 0, nothing)
        return covered.fill_null(0) if covered.null_count() else covered

    def between(self, edges: pl.Series) -> pl.DataFrame:
        """Return the ``covered`` time of each part between edges, where there is any.

        ``part`` is the number of each, in order.

        >>> cover = Cover(pl.DataFrame({"start": [1, 3, 24], "end": [2, 12, 28]}))
        >>> cover.between(pl.Series([0, 10, 20, 30])).rows()
        [(0, 8), (1, 2), (2, 4)]
        """
        until = self.until(edges)
        covered = until[1:] - until[:-1]
        part = rows_where(covered > 0)
        return pl.DataFrame([part.alias("part"), covered[part].alias("covered")])
