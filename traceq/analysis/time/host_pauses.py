"""Pauses of the host: long stretches of Python that few steps have.

An environment is reset, a line is logged, a checkpoint is written, garbage is
collected. No operator and no wait for the GPU explains such a stretch, and in the other
steps its place takes next to nothing. Of four recorded steps one with a pause says
little of what a step takes: a mean over steps would count a quarter of it as work of
each.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import outermost_ops
from traceq.analysis.time.host_activity import INTERRUPTED, LOADS_BATCHES
from traceq.common.expressions import known, rows_where, text
from traceq.graph.nesting import marked_at

if TYPE_CHECKING:
    from traceq.analysis.time.host_segments import HostSegments
    from traceq.model.trace import Trace

# A shorter pause is none. Heuristic threshold: some of 73 and 127 ms were recorded.
_SHORTEST_NS = 5_000_000
# A pause is this many times as long as the usual one at its place. Heuristic threshold.
_UNUSUAL = 5
# A pause that timed steps have takes this share of its recorded time there, or more.
# Heuristic threshold, as that of HST004.
_AS_LONG = 0.5
_AT = ("before", "before_kind", "after", "after_kind")
_SCHEMA = {
    **dict.fromkeys(("first", "past", "longest"), pl.UInt32),
    **dict.fromkeys(("start", "end", "step"), pl.Int64),
    "usual": pl.Float64,
}


def host_pauses(
    trace: Trace, host: HostSegments, activities: pl.DataFrame, activity: pl.Series
) -> pl.DataFrame:
    """Return the pauses, in order: ``start``, ``end``, ``step`` and ``usual``.

    ``activity`` has for each segment its row of ``activities``. A pause is the segments
    from ``first`` up to ``past``, of which ``longest`` takes longest; ``usual`` is what
    is between the same two operators, or at the same edge, in the median step.
    """
    runs = _runs(host, activities, activity)
    long = pl.col("end") - pl.col("start") >= _SHORTEST_NS
    if not runs.select(long.any()).item():
        return pl.DataFrame(schema=_SCHEMA)
    runs = runs.hstack(_places(trace, host, activities, activity, runs))
    pauses = _unusual(runs, host.windows.height, longest_timed(trace)).filter(long)
    return pauses.with_columns(longest=_longest(host, pauses)).select(
        pl.col(name).cast(dtype) for name, dtype in _SCHEMA.items()
    )


def rows_of(pauses: pl.DataFrame) -> pl.Series:
    """Return the segments of pauses."""
    rows = pauses.select(pl.int_ranges("first", "past").explode(empty_as_null=False))
    return rows.to_series().cast(pl.UInt32)


def _runs(
    host: HostSegments, activities: pl.DataFrame, activity: pl.Series
) -> pl.DataFrame:
    """Return what only Python does between two operators: ``first``, ``past``, times.

    Without what is at the edges of the recording, where the profiler is at work. A run
    is of one ``step``.
    """
    python = activities.select(
        pl.col("kind").is_in(INTERRUPTED)
        & ~text("library").str.contains(LOADS_BATCHES).fill_null(value=False)
    ).to_series()
    inside = marked_at(known(python), activity)
    segments, windows = host.segments, host.windows
    begins = inside.ne_missing(inside.shift(1))
    begins |= segments["start"].ne_missing(segments["end"].shift(1))
    begins |= segments["start"].is_in(windows["start"].implode())
    first = rows_where(begins)
    past = first.shift(-1, fill_value=segments.height)
    start, end = segments["start"][first], segments["end"][past - 1]
    begun = windows["start"].search_sorted(start, side="right")
    return pl.DataFrame(
        {
            "first": first,
            "past": past,
            "start": start,
            "end": end,
            "step": windows["step"][begun - 1],
        }
    ).filter(
        inside[first], start != windows["start"].min(), end != windows["end"].max()
    )


def _places(
    trace: Trace,
    host: HostSegments,
    activities: pl.DataFrame,
    activity: pl.Series,
    runs: pl.DataFrame,
) -> pl.DataFrame:
    """Return what is before and after each run: an operator, or a kind of work."""
    segments, outermost = host.segments, outermost_ops(trace)
    starts, ends = (host.windows[side].implode() for side in ("start", "end"))
    columns = {}
    for side, rows, edge in (
        ("before", pl.col("first").cast(pl.Int64) - 1, pl.col("start").is_in(starts)),
        ("after", pl.col("past").cast(pl.Int64), pl.col("end").is_in(ends)),
    ):
        # Of the first and the last in a step nothing of another step is beside it.
        near = runs.select(pl.when(~edge).then(rows).cast(pl.UInt32)).to_series()
        op = outermost[host.op[segments["at"][near]]]
        columns[side] = trace.ops["name"][op].to_physical()
        columns[f"{side}_kind"] = activities["kind"][activity[near]]
    return pl.DataFrame(columns)


def longest_timed(trace: Trace) -> float:
    """Return the longest pause that steps timed without the profiler can have had."""
    timed = trace.rank.step_time if trace.rank else None
    return inf if timed is None else (timed.max_ns - timed.median_ns) / _AS_LONG


def _unusual(runs: pl.DataFrame, steps: int, longest_timed: float) -> pl.DataFrame:
    """Return the runs that take far longer than at their place in most steps.

    At a place that few steps have, that is than the longest at such places. What is
    longer than any pause of the timed steps may be in half of the recorded ones.
    """
    runs = runs.with_columns(length=pl.col("end") - pl.col("start"))
    places = runs.group_by(*_AT, "step").agg(most=pl.col("length").max())
    usual = places.group_by(_AT).agg(
        usual=pl.col("most").median(),
        lower=pl.col("most").quantile(0.5, "lower"),
        rare=2 * pl.len() <= steps,
    )
    rare = (
        places.join(usual.filter("rare"), on=_AT, how="semi", nulls_equal=True)
        .group_by("step")
        .agg(pl.col("most").max())["most"]
    )
    of_rare = rare.extend_constant(0, steps - len(rare))
    untimed = pl.col("length") > longest_timed
    known_runs = runs.join(
        usual, on=_AT, nulls_equal=True, maintain_order="left"
    ).with_columns(
        usual=pl.when("rare")
        .then(
            pl.when(untimed)
            .then(pl.lit(of_rare.quantile(0.5, "lower") or 0.0))
            .otherwise(pl.lit(of_rare.median() or 0.0))
        )
        .when(untimed)
        .then("lower")
        .otherwise("usual"),
        untimed=untimed,
    )
    chosen = known_runs.filter(
        pl.col("length") >= _SHORTEST_NS,
        pl.col("length") > _UNUSUAL * pl.col("usual"),
    )
    paused = pl.col("step").n_unique()
    few = chosen.group_by(_AT).agg(
        few=pl.when(pl.col("untimed").all())
        .then(2 * paused <= steps)
        .otherwise(2 * paused < steps)
    )
    return chosen.join(
        few.filter("few"),
        on=_AT,
        how="semi",
        nulls_equal=True,
        maintain_order="left",
    )


def _longest(host: HostSegments, pauses: pl.DataFrame) -> pl.Series:
    """Return of each pause the segment that takes longest."""
    parts = pauses.select(
        pause=pl.int_range(pl.len()), row=pl.int_ranges("first", "past")
    ).explode("row")
    segments = host.segments[parts["row"]]
    return (
        parts.with_columns(length=segments["end"] - segments["start"])
        .sort("length", descending=True, maintain_order=True)
        .unique("pause", keep="first")
        .sort("pause")["row"]
    )
