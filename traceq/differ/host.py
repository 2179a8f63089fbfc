"""Host activity in the idle time before the kernels of each part of a step.

While the GPU waits for a launch, the host account has an entry for each instant:
operators, on new shapes or slower than usual, Python, a hook. So the idle time before
a part's kernels is divided among these entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.replay.bound import host_account_of
from traceq.analysis.replay.host_account import NEW_SHAPE, SLOW
from traceq.analysis.time.host_activity import (
    BLOCKED,
    BLOCKING,
    CAPTURING,
    COMPILING,
    DATA,
    HOOKS,
    LOADING,
    PYTHON,
    UNKNOWN,
)
from traceq.common.intervals import Cover, count_until, overlap
from traceq.graph.host import only
from traceq.graph.nesting import INDEX

if TYPE_CHECKING:
    from traceq.differ.structure import Parts
    from traceq.model.trace import Trace

APART = (NEW_SHAPE, LOADING, SLOW, HOOKS, BLOCKED, BLOCKING)
"""Kinds that are causes of their own: launches are not what they take their time by."""
APART_IF_SAME = (*APART, PYTHON)
"""The same, where there are as many launches; more of them are more Python, too."""
_ENTRY = ("kind", "name", "file", "line", "function")
# Host activities other than launching have causes of their own already.
_TOLD = (COMPILING, DATA, CAPTURING, "allocating memory")


def idle_entries(trace: Trace, step_ns: int | None, parts: Parts) -> pl.DataFrame:
    """Return the idle time of parts by what the host did: per step, as recorded.

    ``row`` is the part's; ``kind``, ``name``, ``file``, ``line`` and ``function`` are
    those of the account; ``ns`` add up to the idle time before the part's kernels;
    ``calls`` are the operators that ran then.
    """
    gaps, account = parts.gaps, host_account_of(trace, step_ns)
    # The host's activity is looked up for the few spans in which the GPU waited.
    spans = account.spans
    edges = pl.concat([spans["start"], spans["end"].tail(1)])
    spans = spans[Cover(gaps).between(edges)["part"]] if spans.height else spans
    spans = spans.filter(overlap(spans, gaps) > 0)
    entries = account.described.activities.select(_ENTRY)
    entry_of, entries = _numbered(entries)
    segments = account.describe(spans, "start", "end", "op").with_columns(
        entry=entry_of[spans["activity"]]
    )
    pieces = _pieces(gaps, segments, nothing=entries.height - 1)
    pieces = pieces.with_columns(told=entries["kind"].is_in(_TOLD)[pieces["entry"]])
    length = pl.col("end") - pl.col("start")
    other = length * ~pl.col("told")
    weight = pl.when(other.sum().over("gap") > 0).then(other).otherwise(length)
    rows = (
        pieces.with_columns(ns=pl.col("rest") * weight / weight.sum().over("gap"))
        .group_by("row", "entry")
        .agg(pl.col("ns").sum(), calls=pl.col("op").n_unique())
        .with_columns(pl.col("ns", "calls") / parts.steps)
    )
    return rows.select("row", *entries[rows["entry"]], "ns", "calls").sort(
        "row", "ns", *_ENTRY, descending=[False, True, *(False for _ in _ENTRY)]
    )


def _numbered(activities: pl.DataFrame) -> tuple[pl.Series, pl.DataFrame]:
    """Return the number of the entry that each activity is, and the distinct entries.

    The last of them is that of what is not known.
    """
    every = pl.concat([activities, activities.clear(1)]).with_columns(
        pl.col("kind").fill_null(UNKNOWN)
    )
    distinct = every.reverse().unique(maintain_order=True).reverse()
    entries = distinct.with_row_index("entry")
    numbers = every.join(
        entries, on=_ENTRY, how="left", nulls_equal=True, maintain_order="left"
    )["entry"]
    return numbers, entries.drop("entry")


def _pieces(gaps: pl.DataFrame, segments: pl.DataFrame, nothing: int) -> pl.DataFrame:
    """Cut gaps where what the host does changes; both are in order and disjoint.

    ``nothing`` is the entry of what is not known.
    """
    edges = [table[side] for table in (gaps, segments) for side in ("start", "end")]
    moments = pl.concat(edges).sort()
    moments = moments.filter(moments.ne_missing(moments.shift(1)))
    cut = pl.DataFrame({"start": moments[:-1], "end": moments[1:]})
    cut = cut.with_columns(
        gap=_containing(gaps, cut["start"]), segment=_containing(segments, cut["start"])
    ).drop_nulls("gap")
    pieces = segments.select(pl.col("entry", "op").gather(cut["segment"]))
    return cut.with_columns(
        gaps["row"].gather(cut["gap"]),
        gaps["rest"].gather(cut["gap"]),
        *pieces.with_columns(pl.col("entry").fill_null(nothing)),
    )


def _containing(spans: pl.DataFrame, moments: pl.Series) -> pl.Series:
    """Return the row of the span that each moment is in, if any; both are in order."""
    if not spans.height:
        return pl.repeat(None, len(moments), dtype=INDEX, eager=True)
    begun = count_until(spans["start"], moments)
    at = (begun - (begun > 0)).cast(INDEX)
    return only(at, (begun > 0) & (moments < spans["end"][at]))
