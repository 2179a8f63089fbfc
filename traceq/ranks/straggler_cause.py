"""Cause of a late rank: the part of its time that differs from its peers' time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.base.assumptions import EXPLAINED
from traceq.model.finding import NOWHERE, Place
from traceq.ranks.columns import total
from traceq.ranks.peers import IDEAL
from traceq.ranks.timeline import (
    ALLOCATION,
    COMPUTE,
    DATA,
    HOST,
    PARTS,
    STALLED,
    SYNC,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceq.ranks.digest import Digest
    from traceq.ranks.job import Job

SLOWER, MORE, LINK, UNATTRIBUTED = (
    "slower kernels",
    "more work",
    "link",
    "unattributed",
)
CAUSES = (SLOWER, MORE, STALLED, HOST, DATA, ALLOCATION, SYNC, LINK, UNATTRIBUTED)
"""Causes of a late rank, or of a group of late ranks."""

_KEY = ("name", "op", "module", "shape")
_COMPARED = 8
# Times the median distance from the peers; 4 standard deviations.
_BEYOND_NOISE = 6.0


@dataclass(frozen=True)
class Work:
    """A rank's kernels, compared with its peers'."""

    slower_ns: int
    """Additional time of the same kernels."""
    more_ns: int
    """Time of additional work."""
    ratio: float
    """Slowdown of the same kernel, at the median weighted by time."""
    op: str | None
    """Op and shape that differ most."""
    shape: str | None
    kernel: str | None


@dataclass(frozen=True)
class Cause:
    """The cause of a late rank."""

    cause: str
    """One of CAUSES."""
    late_ns: int
    """Excess of its own time over its peers', in the stretches it is late in."""
    parts: Mapping[str, int]
    """The same by part of its time; what differs more in one may be less in another."""
    explained: float
    """The share of it that the cause explains."""
    place: Place = NOWHERE
    region: str | None = None
    """The region of record_function in which the host was."""
    work: Work | None = None


def cause_of(job: Job, compared: pl.DataFrame, rank: int) -> Cause:
    """Return the cause of a late rank; ``compared`` are the stretches of all."""
    rows = compared.filter(pl.col("rank") == rank).with_columns(
        late=pl.col("own") - pl.col(IDEAL)
    )
    rows = _telling(rows)
    late = total(rows["late"])
    parts = {part: int((rows[part] - rows[f"{IDEAL}_{part}"]).sum()) for part in PARTS}
    if not job.has_gpus:
        # Compute on the host is its own time like any other.
        parts[HOST] += parts.pop(COMPUTE)
    main = max(parts, key=lambda part: parts[part])
    explained = min(1.0, parts[main] / late) if late else 0.0
    if explained < EXPLAINED:
        return Cause(UNATTRIBUTED, late, parts, explained)
    if main == COMPUTE:
        work = compare_work(job, rank)
        slower = work is None or work.slower_ns >= work.more_ns
        return Cause(SLOWER if slower else MORE, late, parts, explained, work=work)
    where = _where(job, rows, rank, main)
    place = Place(where["file"], where["line"], where["function"])
    return Cause(main, late, parts, explained, place, where["region"])


def _telling(table: pl.DataFrame) -> pl.DataFrame:
    """Return the stretches that tell why a rank is late.

    That are those in which it is late beyond the noise, if they are most of it; else
    all, as noise goes both ways; or those in which it is late at all, if it is early in
    others.
    """
    longer = table.filter(pl.col("late") > 0)
    beyond = longer.filter(pl.col("late") > _BEYOND_NOISE * pl.col("spread"))
    net = total(table["late"])
    if total(beyond["late"]) >= max(net, 1) / 2:
        return beyond
    return table if net >= total(longer["late"]) / 2 else longer


def _where(job: Job, table: pl.DataFrame, rank: int, part: str) -> dict[str, Any]:
    """Return the host's place in most of the time that the rank is late by."""
    columns = ("region", "file", "line", "function")
    places = (
        job.meetings.filter(pl.col("rank") == rank)
        .join(table.select("stretch"), on="stretch", how="semi")
        .group_by(columns)
        .agg(time=pl.col(part).sum())
        .sort("time", *columns, descending=[True, *[False] * 4])
    )
    if not places.height:
        return dict.fromkeys(columns)
    return places.select(columns).row(0, named=True)


def compare_work(job: Job, rank: int) -> Work | None:
    """Compare a rank's kernels with those of some of its peers, a step each."""
    others = [row for row in job.ranks["rank"].to_list() if row != rank]
    # Spread over the job, so that one slow machine is not all of them.
    chosen = others[:: max(1, len(others) // _COMPARED)][:_COMPARED]
    group_rows = _per_step(job.digests[rank])
    if group_rows is None or not chosen:
        return None
    tables = [_per_step(job.digests[row]) for row in chosen]
    theirs = pl.concat([table for table in tables if table is not None])
    peers = len(tables)
    usual = theirs.group_by(_KEY).agg(
        pl.col("count").sum() / peers, pl.col("time").sum() / peers
    )
    joined = group_rows.join(
        usual, on=_KEY, how="full", coalesce=True, nulls_equal=True
    )
    joined = joined.with_columns(
        pl.col("count", "time", "count_right", "time_right").fill_null(0.0)
    )
    each, usually = (
        pl.col("time") / pl.col("count"),
        pl.col("time_right") / pl.col("count_right"),
    )
    both = (pl.col("count") > 0) & (pl.col("count_right") > 0)
    rows = joined.with_columns(
        slower=pl.when(both)
        .then((each - usually) * pl.min_horizontal("count", "count_right"))
        .otherwise(0.0),
        ratio=pl.when(both).then(each / usually),
    ).with_columns(
        more=pl.col("time") - pl.col("time_right") - pl.col("slower"),
    )
    slower, more = rows["slower"].sum(), rows["more"].sum()
    by = "slower" if slower >= more else "more"
    worst = rows.sort(by, *_KEY, descending=[True, *[False] * 4]).row(0, named=True)
    return Work(
        round(slower),
        round(more),
        _weighted_median(rows.drop_nulls("ratio")),
        worst["op"],
        worst["shape"],
        worst["name"],
    )


def _weighted_median(rows: pl.DataFrame) -> float:
    if not rows.height:
        return 1.0
    ordered = rows.sort("ratio").with_columns(reached=pl.col("time").cum_sum())
    half = ordered["time"].sum() / 2
    return float(ordered.filter(pl.col("reached") >= half)["ratio"][0])


def _per_step(digest: Digest) -> pl.DataFrame | None:
    kernels = digest.table("kernels")
    if not kernels.height:
        return None
    steps = max(1, digest.table("steps").height)
    return kernels.select(*_KEY, pl.col("count") / steps, pl.col("time") / steps)


def slow_links(job: Job) -> tuple[pl.DataFrame, tuple[int, ...]]:
    """Return the collectives that take longer than their peers, and who is in them.

    The ranks are those that nearly all of the lost time has in common; none if it is
    spread over all, or other transfers of these ranks are as fast as elsewhere.
    """
    slow = job.collectives.with_columns(
        lost=pl.col("transfer") - pl.col("usual")
    ).filter(pl.col("lost") > pl.col("usual") / 4)
    lost = int(slow["lost"].sum())
    if not lost:
        return slow, ()
    members = job.cells.select("rank", "instance").join(
        slow.select("instance", "lost"), on="instance"
    )
    by_rank = members.group_by("rank").agg(pl.col("lost").sum())
    common = by_rank.filter(pl.col("lost") >= EXPLAINED * lost)["rank"].sort()
    if len(common) in (0, job.ranks.height) or not _always(job, slow, common):
        return slow, ()
    return slow, tuple(common.to_list())


def _always(job: Job, slow: pl.DataFrame, common: pl.Series) -> bool:
    """Return whether transfers that some ranks have in common are slow in most steps.

    A link is slow whenever something goes through it; noise is now here, now there.
    """
    theirs = (
        job.cells.filter(pl.col("rank").is_in(common.implode()))
        .group_by("instance")
        .agg(pl.col("rank").n_unique())
        .filter(pl.col("rank") == len(common))
    )
    rows = slow.join(theirs, on="instance", how="semi")
    alike = job.collectives.join(theirs, on="instance", how="semi").join(
        rows, on="place", how="semi"
    )
    return rows.height >= EXPLAINED * alike.height


def named(ranks: Sequence[int], job: Job) -> list[int]:
    """Return the numbers of ranks, of their rows."""
    return sorted(job.ranks["number"].gather(list(ranks)).to_list())
