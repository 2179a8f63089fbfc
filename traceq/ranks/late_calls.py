"""Late ranks of a job that did not hang, by when each called its collectives.

A call's time is of its host's clock. Ranks of one host share it; between hosts a clock
that is ahead looks like a rank that is late everywhere by the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from msgspec import structs

from traceq.model.finding import Severity
from traceq.ranks.hangs import Problem, call_of, hangs

if TYPE_CHECKING:
    from traceq.ranks.dumps import DumpJob

# Heuristic thresholds: what a rank is late by in all is worth naming from this share of
# the time on, if most of all lateness is its own: chance spreads it over the ranks.
_WORTH = 0.05
_OWN = 0.7
_FEWEST = 4
_NOTICEABLE = 1_000_000
# What comes first is the job's start, where ranks compile and load.
_START = 0.25
# A lateness that never falls below this share of its median may be the clock's.
_STEADY = 0.8


def problems_of(job: DumpJob) -> tuple[DumpJob, list[Problem]]:
    """Return why ranks wait, or who is late if none does; with a doubt as a notice."""
    if problems := hangs(job):
        return job, problems
    late, doubt = late_rank(job)
    if doubt:
        job = structs.replace(job, notices=(*job.notices, doubt))
    return job, [late] if late else []


def late_rank(job: DumpJob) -> tuple[Problem | None, str]:
    """Return the rank that the others wait for most, and a doubt about its clock."""
    calls = _lateness(job)
    if calls.is_empty():
        return None, ""
    by_rank = calls.group_by("rank").agg(
        late=pl.col("late").clip(0).sum(),
        least=pl.col("late").min(),
        usual=pl.col("late").filter(pl.col("late") > _NOTICEABLE).median(),
        count=(pl.col("late") > _NOTICEABLE).sum(),
    )
    worst = by_rank.sort("late", "rank", descending=[True, False]).row(0, named=True)
    created = calls["created"].sort()
    window = created[-1] - created[0]
    every = int(by_rank["late"].sum())
    few = worst["count"] < _FEWEST or window <= 0
    if few or worst["late"] < _WORTH * window or worst["late"] < _OWN * every:
        return None, ""
    own = calls.filter(pl.col("rank") == worst["rank"])
    place = own.with_columns(
        of_place=pl.col("late").clip(0).sum().over("op", "file", "line")
    ).sort("of_place", "late", descending=True)
    others = sorted(set(job.ranks) - {worst["rank"]})
    problem = Problem(
        "late",
        Severity.warning,
        (worst["rank"],),
        tuple(others),
        (call_of(place.row(0, named=True)),),
        late_ns=round(worst["usual"]),
        share=worst["late"] / window,
    )
    if worst["least"] < _STEADY * worst["usual"]:
        return problem, ""
    return problem, (
        f"rank {worst['rank']} is late at every collective by about the same time: if"
        " it is on another host, its clock may be ahead"
    )


def _lateness(job: DumpJob) -> pl.DataFrame:
    """Return the calls of collectives, and how late each is after the median rank.

    The job's start is left out.
    """
    meeting = ["key", "seq", "nth"]
    calls = job.calls.filter((pl.col("lane") == "") & pl.col("created").is_not_null())
    usual = pl.col("created").quantile(0.5, "lower").over(meeting).cast(pl.Int64)
    return (
        calls.filter(pl.len().over(meeting) > 1)
        .with_columns(usual=usual)
        .filter(pl.col("usual") >= pl.col("usual").quantile(_START))
        .with_columns(late=pl.col("created") - pl.col("usual"))
    )
