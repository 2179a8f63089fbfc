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


def overlap(parts: pl.DataFrame, cover: pl.DataFrame) -> pl.Series:
    """Return for each of the spans how much of it the others cover together."""
    return Cover(cover).of(parts)


def covered_until(cover: pl.DataFrame, moments: pl.Series) -> pl.Series:
    """Return how much of the time before each moment the spans cover together."""
    return Cover(cover).until(moments)


class Cover:
    """Spans, put in order once, to be asked how much of the time they cover."""

    def __init__(self, cover: pl.DataFrame) -> None:
        """Keep disjoint spans in order, with what lies before each and its length."""
        length = pl.col("end") - pl.col("start")
        self._pieces = (
            disjoint(cover.select("start", "end"))
            .filter(length > 0)
            .select(pl.col("start").set_sorted(), length.alias("length"))
            .with_columns(
                begin="start", before=pl.col("length").cum_sum() - pl.col("length")
            )
        )

    def of(self, parts: pl.DataFrame) -> pl.Series:
        """Return for each of the spans how much of it is covered."""
        return self.until(parts["end"]) - self.until(parts["start"])

    def until(self, moments: pl.Series) -> pl.Series:
        """Return how much of the time before each moment is covered."""
        if not self._pieces.height:
            return pl.repeat(0, len(moments), dtype=pl.Int64, eager=True)
        at = moments.alias("at").to_frame()
        if moments.is_sorted():
            # Both are in order: they are gone through together, nothing is searched.
            begun = at.join_asof(self._pieces, left_on="at", right_on="start")
        else:
            others = self._pieces["start"][1:]
            begun = at.hstack(self._pieces[others.search_sorted(moments, "right")])
        into = (pl.col("at") - pl.col("begin")).clip(lower_bound=0)
        into = pl.when(into < pl.col("length")).then(into).otherwise("length")
        return begun.select((pl.col("before") + into).fill_null(0)).to_series()

    def between(self, edges: pl.Series) -> pl.DataFrame:
        """Return which of the parts of time between edges are ``covered``, how much.

        ``part`` is the number of each, in order. Where few are, this is faster than to
        look at all of them.

        >>> cover = Cover(pl.DataFrame({"start": [1, 3, 24], "end": [2, 12, 28]}))
        >>> cover.between(pl.Series([0, 10, 20, 30])).rows()
        [(0, 8), (1, 2), (2, 4)]
        """
        spans = self._pieces.select("start", end=pl.col("start") + pl.col("length"))
        last = len(edges) - 1
        first = edges.search_sorted(spans["start"], "right").cast(pl.Int64) - 1
        after = edges.search_sorted(spans["end"]).clip(upper_bound=last)
        parts = pl.int_ranges(first.clip(0, last), after, dtype=pl.UInt32)
        found = spans.with_columns(part=parts).explode("part").drop_nulls("part")
        covered = pl.min_horizontal(
            "end", edges[found["part"] + 1]
        ) - pl.max_horizontal("start", edges[found["part"]])
        return (
            found.select(pl.col("part").set_sorted(), covered=covered)
            .group_by("part", maintain_order=True)
            .agg(pl.col("covered").sum())
        )
