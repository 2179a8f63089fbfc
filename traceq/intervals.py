"""Spans of time: how much they cover together, each instant counted once.

A frame of spans has the columns ``start`` and ``end``.
"""

from __future__ import annotations

import polars as pl

from traceq.expressions import END


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
    return events.select(start="ts", end=END)


def disjoint(parts: pl.DataFrame) -> pl.DataFrame:
    """Return what each span, in order of start, adds to the time before it.

    The result has a row for each span, in the order of the starts, so that the
    lengths can be given to whoever a span is of and their sum counts no instant twice.
    """
    reached = pl.col("end").cum_max().shift(1).fill_null(pl.col("start"))
    return parts.sort("start", "end", maintain_order=True).with_columns(
        start=pl.max_horizontal("start", pl.min_horizontal("end", reached))
    )


def overlap(parts: pl.DataFrame, cover: pl.DataFrame) -> pl.Series:
    """Return for each of the spans how much of it the others cover together."""
    pieces = _pieces(cover)
    return _until(pieces, parts["end"]) - _until(pieces, parts["start"])


def covered_until(cover: pl.DataFrame, moments: pl.Series) -> pl.Series:
    """Return how much of the time before each moment the spans cover together."""
    return _until(_pieces(cover), moments)


def _pieces(cover: pl.DataFrame) -> pl.DataFrame:
    """Return disjoint spans in order, with what lies ``before`` each and its length."""
    pieces = disjoint(cover)
    pieces = pieces.filter(pieces["end"] > pieces["start"])
    length = pieces["end"] - pieces["start"]
    before = (length.cum_sum() - length).alias("before")
    return pl.DataFrame([pieces["start"], before, length.alias("length")])


def _until(pieces: pl.DataFrame, moments: pl.Series) -> pl.Series:
    if not pieces.height:
        return pl.repeat(0, len(moments), dtype=pl.Int64, eager=True)
    start, before, length = pieces.get_columns()
    # The last piece that has begun; the first for moments before all of them.
    at = start[1:].search_sorted(moments, side="right")
    into = moments - start[at]
    into = into.zip_with(into > 0, pl.Series([0], dtype=into.dtype))
    return before[at] + into.zip_with(into < length[at], length[at])
