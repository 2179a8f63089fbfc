"""Spans of time: how much they cover together, each instant counted once.

A frame of spans has the columns ``start`` and ``end``.
"""

from __future__ import annotations

import polars as pl

from traceq.common.expressions import constant
from traceq.common.native_loading import Arrow, usable

try:
    from traceq.intervals import _spans
except ImportError:  # it was not built
    _spans = None  # type: ignore[assignment]  # a module, where it was

# What was built of another state of its source is left alone.
_INTERFACE = 3


def covered(start: pl.Expr, end: pl.Expr, since: pl.Expr | None = None) -> pl.Expr:
    """How much each interval adds to what the intervals before it have covered.

    The rows must be sorted by ``start``; the sum of the result is the length of the
    intervals' union. What lies before ``since`` does not count.
    """
    return (end - pl.max_horizontal(start, _reached(end, since))).clip(lower_bound=0)


def uncovered(start: pl.Expr, end: pl.Expr, since: pl.Expr | None = None) -> pl.Expr:
    """How much of the time before each interval no earlier interval covers.

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
    """Return what each span, in order of start, adds to the time before it.

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
    """Return when any of the spans went on: in order, those that touch as one.

    >>> merged(pl.DataFrame({"start": [4, 0, 1], "end": [6, 3, 4]})).rows()
    [(0, 6)]
    """
    return Cover(parts).spans


def overlap(parts: pl.DataFrame, cover: pl.DataFrame) -> pl.Series:
    """Return for each of the spans how much of it the others cover together."""
    return Cover(cover).of(parts)


def covered_until(cover: pl.DataFrame, moments: pl.Series) -> pl.Series:
    """Return how much of the time before each moment the spans cover together."""
    return Cover(cover).until(moments)


def count_before(times: pl.Series, moments: pl.Series) -> pl.Series:
    """Return how many of the times, which are in order, are before each moment.

    Where the moments are in order as well, that takes a fraction of searching.
    """
    if times.dtype == pl.Int64 and _are_taken(times, moments):
        return _passed(times, moments, before=True)
    return times.search_sorted(moments)


def count_until(times: pl.Series, moments: pl.Series) -> pl.Series:
    """Return how many of the times, which are in order, are not after each moment."""
    if _are_taken(times, moments):
        return _passed(times, moments, before=False)
    return times.search_sorted(moments, side="right")


def _passed(times: pl.Series, moments: pl.Series, *, before: bool) -> pl.Series:
    columns, fractions = (times.rechunk(), moments.rechunk()), moments.dtype.is_float()
    return pl.Series(Arrow(*_spans.passed(*columns, fractions, before)))


def holding(events: pl.DataFrame, moments: pl.Series) -> pl.DataFrame:
    """Return the events, of ``ts`` and ``dur``, during which any of the moments is.

    >>> events = pl.DataFrame({"ts": [0, 3, 9], "dur": [3, 4, 2]})
    >>> holding(events, pl.Series([4, 3])).rows()
    [(3, 4)]
    """
    start, dur = events["ts"], events["dur"]
    times = moments.drop_nulls().unique().sort()
    if start.dtype == pl.Int64 and _are_taken(start, dur, times):
        found = _spans.holding(start.rechunk(), dur.rechunk(), times)
        if found is not None:
            return events.select(pl.all().gather(pl.Series(Arrow(*found))))
    first, after = times.search_sorted(start), times.search_sorted(start + dur)
    return events.filter(after > first)


class Cover:
    """Spans, put in order once, to be asked how much of the time they cover."""

    def __init__(self, cover: pl.DataFrame) -> None:
        """Merge the spans, and keep how much those before each of them cover."""
        found = _merged_at_once(cover)
        if found is None:
            parts = disjoint(cover.select("start", "end"))
            spans = joined(parts.filter(pl.col("end") > pl.col("start")))
            length = spans["end"] - spans["start"]
            # As compiled code adds: to the last digit the same.
            before = length.cum_sum().shift(1, fill_value=0)
            found = [*spans.get_columns(), before]
        self._start, self._end, self._before = found

    @property
    def spans(self) -> pl.DataFrame:
        """The time that is covered: ``start`` and ``end``."""
        return pl.DataFrame([self._start.alias("start"), self._end.alias("end")])

    def of(self, parts: pl.DataFrame) -> pl.Series:
        """Return for each of the spans how much of it is covered."""
        return self.until(parts["end"]) - self.until(parts["start"])

    def until(self, moments: pl.Series) -> pl.Series:
        """Return how much of the time before each moment is covered."""
        if not len(self._start):
            return constant(0, len(moments), pl.Int64)
        spans = (self._start, self._end, self._before)
        if _are_taken(*spans, moments):
            fractions = moments.dtype == pl.Float64
            return pl.Series(Arrow(*_spans.until(*spans, moments.rechunk(), fractions)))
        begun = self._start[1:].search_sorted(moments, side="right")
        start, end, before = (column[begun] for column in spans)
        into = moments.zip_with(moments < end, end) - start
        return (before + into.clip(lower_bound=0)).fill_null(0)

    def between(self, edges: pl.Series) -> pl.DataFrame:
        """Return which of the parts of time between edges are ``covered``, how much.

        ``part`` is the number of each, in order. Where few are, this is faster than to
        look at all of them.

        >>> cover = Cover(pl.DataFrame({"start": [1, 3, 24], "end": [2, 12, 28]}))
        >>> cover.between(pl.Series([0, 10, 20, 30])).rows()
        [(0, 8), (1, 2), (2, 4)]
        """
        if edges.dtype == pl.Int64 and _are_taken(self._start, self._end, edges):
            made = _spans.between(self._start, self._end, edges.rechunk())
            part, covered = (pl.Series(Arrow(*one)) for one in made)
            return pl.DataFrame([part.alias("part"), covered.alias("covered")])
        spans, last = self.spans, len(edges) - 1
        first = edges.search_sorted(spans["start"], "right").cast(pl.Int64) - 1
        after = edges.search_sorted(spans["end"]).clip(upper_bound=last)
        parts = pl.int_ranges(first.clip(0, last), after, dtype=pl.UInt32)
        found = spans.with_columns(part=parts).explode("part").drop_nulls("part")
        inside = pl.min_horizontal("end", edges[found["part"] + 1]) - pl.max_horizontal(
            "start", edges[found["part"]]
        )
        return (
            found.select(pl.col("part").set_sorted(), covered=inside)
            .group_by("part", maintain_order=True)
            .agg(pl.col("covered").sum())
        )


def _merged_at_once(cover: pl.DataFrame) -> list[pl.Series] | None:
    """Return starts, ends, and what lies before each, by compiled code if there is."""
    start, end = cover["start"], cover["end"]
    if not _are_taken(start, end):
        return None
    fractions = start.dtype == pl.Float64
    made = _spans.merged(start.rechunk(), end.rechunk(), fractions)
    if made is None:
        start, end = cover[["start", "end"]].sort("start")
        made = _spans.merged(start.rechunk(), end.rechunk(), fractions)
    return [pl.Series(Arrow(*one)) for one in made or ()]


def _are_taken(*columns: pl.Series) -> bool:
    """Return whether there is compiled code, and it takes these columns."""
    dtype = columns[0].dtype
    return (
        usable(_spans, _INTERFACE)
        and dtype in (pl.Int64, pl.Float64)
        and all(one.dtype == dtype and not one.null_count() for one in columns)
    )
