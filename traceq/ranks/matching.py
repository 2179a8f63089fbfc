"""Matching of kernels of different ranks that are one collective.

Criteria, in order: the id that newer torch writes; group and number; the order in the
group, with a shift for each rank, because windows begin and end anywhere. A shift is
accepted if it explains the times best: a collective ends on all ranks at once, so the
times from one end to the next are the same, and other shifts are as wrong as the steps
differ from each other. If no shift stands out, the clocks may decide; if they do not
either, the rank is not matched, and the report states it.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import (
    ALIGNED_END_NS,
    CLOCK_DRIFT,
    SURE_OF_SHIFT,
    TRUSTED_CLOCK_NS,
    USUAL_NOISE,
)
from traceq.ranks.columns import highest, lowest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BY_ID, _BY_NUMBER, _BY_STEP, _BY_ORDER = "id", "number", "step", "order"
_KEY = "key"
# Weight of clocks that agree, for a shift, over that of clocks that differ by more than
# they do between machines, against it.
_CLOCK_DOUBT = 4.0
# A kernel that does not overlap with its partner speaks against a shift this much.
_IMPOSSIBLE = 5.0
# And so do steps with other numbers.
_OTHER_STEP = 6.0
# Ends and starts this many times the usual scatter apart do not overlap.
_CLEARLY = 10
# A shift with a lower score than this is no better than none.
_AGAINST = -1.0
# The scatter is learned from shifts with at least this many pairs.
_FEWEST_PAIRS = 4
# Ends are compared with this many around them: few enough that clocks do not drift, and
# enough that one end that is far off does not count for its neighbours.
_NEARBY = 5
# Rows of pairs in memory at a time.
_PAIRS_AT_ONCE = 500_000
# Shifts are tried within this many collectives where there are very many.
_ALL_SHIFTS = 300
_NEAR = 150


@dataclass(frozen=True)
class Split:
    """A lane whose ranks fall into sets between which nothing could be matched."""

    lane: str
    sets: tuple[tuple[int, ...], ...]
    """Rows of the ranks; a rank that meets nobody is a set of its own."""


@dataclass(frozen=True)
class Matched:
    """The collectives of all ranks, and which of them are one."""

    cells: pl.DataFrame
    """One row for a rank's part of a collective, with ``instance``; null if no other
    rank is known to take part."""
    by: dict[str, int]
    """Number of matches by ``id``, ``number``, ``step`` and ``order``."""
    splits: tuple[Split, ...]
    """Lanes whose ranks could not all be aligned with each other."""


def matched(cells: pl.DataFrame) -> Matched:
    """Match the collectives of all ranks.

    The cells have the columns of COLLECTIVES with times of the ranks' own clocks, and
    ``rank``, the row of the rank.
    """
    pair = pl.when(pl.col("source").is_not_null() | pl.col("destination").is_not_null())
    rows = cells.with_columns(
        pair=pair.then(
            pl.format(
                "{}>{}",
                pl.coalesce("source", "number_of_rank"),
                pl.coalesce("destination", "number_of_rank"),
            )
        )
    ).with_columns(
        lane=pl.concat_str(
            "lane",
            pl.col("group_ranks").cast(pl.List(pl.String)).list.join(","),
            "pair",
            separator=" ",
            ignore_nulls=True,
        ),
        token=pl.when(pl.col("pair").is_null()).then("token").otherwise(pl.lit("p2p")),
    )
    identified = rows.filter(pl.col("comms_id").is_not_null()).with_columns(
        key=_repeated("id ", "comms_id")
    )
    numbered = rows.filter(
        pl.col("comms_id").is_null()
        & pl.col("number").is_not_null()
        & pl.col("group").is_not_null()
        & pl.col("pair").is_null()
    ).with_columns(key=_repeated("seq ", "lane", "number", "kind"))
    stepped = _by_step(
        rows.join(identified.select("cell"), on="cell", how="anti").join(
            numbered.select("cell"), on="cell", how="anti"
        )
    )
    with_key = pl.concat([identified, numbered, stepped], how="vertical")
    rest = rows.join(with_key.select("cell"), on="cell", how="anti")
    ordered, splits = _by_order(rest)
    keyed = pl.concat(
        [
            with_key.select("cell", _KEY),
            ordered,
        ]
    )
    return Matched(
        _with_instances(cells, keyed),
        {
            _BY_ID: identified.height,
            _BY_NUMBER: numbered.height,
            _BY_STEP: stepped.height,
            _BY_ORDER: ordered.height,
        },
        splits,
    )


def _by_step(rows: pl.DataFrame) -> pl.DataFrame:
    """Match by place in the step, where the recorder says that steps are the same.

    Only where all ranks of a lane have as many of a kind in the step.
    """
    kind = ("lane", "step", "token")
    counted = rows.filter(
        pl.col("first_step").is_not_null() & pl.col("step").is_not_null()
    ).with_columns(count=pl.len().over("rank", *kind))
    alike = counted.filter(
        (pl.col("count").n_unique().over(kind) == 1)
        & (
            pl.col("rank").n_unique().over(kind)
            == pl.col("rank").n_unique().over("lane")
        )
    )
    return (
        alike.sort("rank", "start", "end")
        .with_columns(key=_repeated("step ", *kind))
        .drop("count")
    )


def _repeated(prefix: str, *columns: str) -> pl.Expr:
    """Return a key; where a rank has it several times, each with its number."""
    again = pl.int_range(pl.len()).over("rank", *columns)
    return pl.lit(prefix) + pl.concat_str(*columns, again, separator=" ")


def _with_instances(cells: pl.DataFrame, keyed: pl.DataFrame) -> pl.DataFrame:
    """Give the collectives of several ranks numbers, by their first start."""
    joined = cells.join(keyed, on="cell", how="left", maintain_order="left")
    instances = (
        joined.drop_nulls(_KEY)
        .group_by(_KEY)
        .agg(ranks=pl.col("rank").n_unique(), first=pl.col("start").min())
        .filter(pl.col("ranks") > 1)
        .sort("first", _KEY)
        .select(_KEY)
        .with_row_index("instance")
    )
    return joined.join(instances, on=_KEY, how="left", maintain_order="left").drop(_KEY)


def _by_order(rows: pl.DataFrame) -> tuple[pl.DataFrame, tuple[Split, ...]]:
    """Match by order: ``cell`` and ``key``, and lanes whose ranks do not all meet."""
    parts = [pl.DataFrame(schema={"cell": rows.schema["cell"], _KEY: pl.String()})]
    splits = []
    for (lane,), part in rows.partition_by("lane", as_dict=True).items():
        ranked = part.sort("rank", "start", "end").with_columns(
            place=pl.int_range(pl.len()).over("rank")
        )
        clusters = _joined(list(_clusters(ranked)))
        members = [cluster["rank"].unique().sort().to_list() for cluster in clusters]
        if len(clusters) > 1:
            splits.append(Split(str(lane), tuple(map(tuple, members))))
        for number, (cluster, ranks) in enumerate(zip(clusters, members, strict=True)):
            if len(ranks) > 1:
                key = pl.format("{} {} {}", pl.lit(lane), pl.lit(number), "place")
                parts.append(cluster.select("cell", key=key))
    return pl.concat(parts), tuple(splits)


def _clusters(rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield sets of ranks that meet, with common places, the first the longest."""
    while rows.height:
        counts = (
            rows.group_by("rank").len().sort("len", "rank", descending=[True, False])
        )
        cluster = _grown(rows, counts["rank"][0])
        yield cluster
        ranks = cluster["rank"].unique().implode()
        rows = rows.filter(~pl.col("rank").is_in(ranks))


def _joined(clusters: list[pl.DataFrame]) -> list[pl.DataFrame]:
    """Put sets of ranks together that one shift of all their ranks explains."""
    joined: list[pl.DataFrame] = []
    for cluster in clusters:
        for at, other in enumerate(joined):
            if (shift := _common_shift(cluster, other)) is not None:
                moved = cluster.with_columns(pl.col("place") + shift)
                joined[at] = pl.concat([other, moved])
                break
        else:
            joined.append(cluster)
    return joined


def _common_shift(cluster: pl.DataFrame, other: pl.DataFrame) -> int | None:
    """Return the shift of all ranks of a set against another set, if one is sure."""
    master = _master(other)
    scale = _scale(cluster, master)
    scores = _scores(cluster, _with_rarity(master, scale), scale, TRUSTED_CLOCK_NS)
    ranks = cluster["rank"].n_unique()
    every = scores.group_by("shift").agg(pl.col("score").sum(), ranks=pl.len())
    both = _sure(every.filter(pl.col("ranks") == ranks).with_columns(rank=pl.lit(0)))
    return int(both["shift"][0]) if both.height else None


def _master(cluster: pl.DataFrame) -> pl.DataFrame:
    """Return the places of ranks that are aligned: the first rank's, then others'."""
    return (
        cluster.select("place", "token", "step", "start", "end")
        .unique("place", keep="first", maintain_order=True)
        .sort("place")
    )


def _grown(rows: pl.DataFrame, first: int) -> pl.DataFrame:
    """Return the ranks that can be aligned with one, its places as theirs."""
    cluster = rows.filter(pl.col("rank") == first)
    master = _master(cluster)
    waiting = rows.filter(pl.col("rank") != first)
    offsets: list[int] = []
    while waiting.height:
        scale = _scale(waiting, master)
        rare = _with_rarity(master, scale)
        shifts = _sure(_scores(waiting, rare, scale, _clock_trust(offsets, scale)))
        if not shifts.height:
            break
        offsets += shifts["offset"].abs().to_list()
        moved = waiting.join(shifts, on="rank", maintain_order="left").with_columns(
            place=pl.col("place") + pl.col("shift")
        )
        cluster = pl.concat([cluster, moved.select(cluster.columns)])
        waiting = waiting.join(shifts, on="rank", how="anti")
        # Places that the first rank did not record: others may share them.
        more = _master(moved.with_columns(pl.col("start", "end") - pl.col("offset")))
        master = pl.concat([master, more.join(master, on="place", how="anti")]).sort(
            "place"
        )
    return cluster


def _clock_trust(offsets: list[int], scale: float) -> float:
    """Return the plausible difference of clocks: that of the aligned ranks."""
    if not offsets:
        return TRUSTED_CLOCK_NS
    return min(TRUSTED_CLOCK_NS, 4 * scale + 3 * median(offsets))


def _tried(longest: int, count: int) -> Sequence[int]:
    """Return the shifts that are worth a try."""
    if max(longest, count) <= _ALL_SHIFTS:
        return range(1 - longest, count)
    return range(-_NEAR, _NEAR + 1)


def _paired(
    rows: pl.DataFrame, master: pl.DataFrame, shifts: Sequence[int]
) -> pl.DataFrame:
    """Pair places at each shift, of the ranks whose pairs are all of one kind.

    ``offset`` is how much later an end is than the master's, and ``off`` how far that
    is from what it is nearby: at the right shift all are the same, but for a drift.
    """
    each = ("rank", "shift")
    nearby = pl.col("offset").rolling_median(_NEARBY, min_samples=1, center=True)
    return (
        rows.select("rank", "token", "step", "start", "end", "place")
        .join(pl.DataFrame({"shift": shifts}, {"shift": pl.Int64}), how="cross")
        .with_columns(pl.col("place") + pl.col("shift"))
        .join(master, on="place", suffix="_master")
        .filter((pl.col("token") == pl.col("token_master")).all().over(each))
        .sort("rank", "shift", "place")
        .with_columns(
            since=pl.col("end_master").diff().over(each).fill_null(0),
            offset=pl.col("end") - pl.col("end_master"),
        )
        .with_columns(off=(pl.col("offset") - nearby.over(each)).abs())
    )


def _all_paired(rows: pl.DataFrame, master: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the pairs of the shifts that are worth a try, of some shifts at a time."""
    longest = highest(rows["place"]) + 1
    first, last = lowest(master["place"]), highest(master["place"])
    tried = _tried(longest - first, last + 1)
    some = max(1, _PAIRS_AT_ONCE // max(1, rows.height))
    for at in range(0, len(tried), some):
        yield _paired(rows, master, tried[at : at + some])


def _scale(rows: pl.DataFrame, master: pl.DataFrame) -> float:
    """Return how far apart the ends of one collective usually are in this job.

    That is what three quarters of the ends are within at the shift that fits a rank
    best, at the median of the ranks. Short overlaps fit by chance, and do not count.
    """
    fits = pl.concat(
        pairs.group_by("rank", "shift").agg(
            pairs=pl.len(), scatter=pl.col("off").quantile(0.75)
        )
        for pairs in _all_paired(rows, master)
    )
    enough = pl.max_horizontal(_FEWEST_PAIRS, pl.col("pairs").max().over("rank") / 2)
    best = (
        fits.filter(pl.col("pairs") >= enough)
        .group_by("rank")
        .agg(pl.col("scatter").min())
    )
    usual = best["scatter"].median()
    return max(float(ALIGNED_END_NS), usual if isinstance(usual, float) else 0.0)


def _with_rarity(master: pl.DataFrame, scale: float) -> pl.DataFrame:
    """Add how far off each end would be at another shift.

    Ends that are as far apart in every step tell little, however well they fit.
    """
    alone = master.with_columns(rank=pl.lit(0, pl.Int64))
    others = pl.concat(
        pairs.filter(pl.col("shift") != 0).select("place", "off")
        for pairs in _all_paired(alone, master)
    )
    recurs = others.drop_nulls().group_by("place").agg(near=pl.col("off").median())
    usual = USUAL_NOISE * pl.col("end").diff()
    rare = pl.min_horizontal(pl.col("near"), usual.fill_null(0))
    return (
        master.join(recurs, on="place", how="left", maintain_order="left")
        .with_columns(rarity=pl.max_horizontal(pl.lit(scale), rare))
        .drop("near")
    )


def _scores(
    rows: pl.DataFrame, master: pl.DataFrame, scale: float, clock: float
) -> pl.DataFrame:
    """Return ``rank``, ``shift``, ``offset`` and ``score`` of all possible shifts."""
    return pl.concat(
        _scored(pairs, scale, clock) for pairs in _all_paired(rows, master)
    )


def _sure(scores: pl.DataFrame) -> pl.DataFrame:
    """Return the best shift of the ranks for which no other is nearly as good."""
    ordered = scores.sort("rank", "score", descending=[False, True])
    second = pl.col("score").get(1, null_on_oob=True).fill_null(-float("inf"))
    best = ordered.group_by("rank", maintain_order=True).agg(
        pl.exclude("rank").first(), second=second
    )
    sure = (pl.col("score") - pl.col("second") >= SURE_OF_SHIFT) & (
        pl.col("score") > _AGAINST
    )
    return best.filter(sure).drop("score", "second")


def _scored(pairs: pl.DataFrame, scale: float, clock: float) -> pl.DataFrame:
    """Return for each rank how much speaks for the shift: ``score``, ``offset``.

    The evidence of a pair is how much likelier its time is at the right shift than at
    another one. Both have heavy tails: few ends that are far off decide nothing.
    """
    drift = CLOCK_DRIFT * pl.col("since").abs()
    width, wide = scale + drift, pl.col("rarity") + drift
    evidence = (
        (wide / width).log()
        + (1 + (pl.col("off") / wide) ** 2).log()
        - (1 + (pl.col("off") / width) ** 2).log()
    )
    offset = pl.col("offset").median()
    apart = ((pl.col("start") - offset - pl.col("end_master")) > _CLEARLY * scale) | (
        (pl.col("start_master") - pl.col("end") + offset) > _CLEARLY * scale
    )
    doubt = pl.min_horizontal(pl.lit(_CLOCK_DOUBT), offset.abs() / clock)
    return pairs.group_by("rank", "shift").agg(
        offset=offset.cast(pl.Int64),
        # One of the pairs says what the offset is, and nothing of the shift.
        score=evidence.mean() * (pl.len() - 1)
        - _IMPOSSIBLE * apart.sum()
        - _OTHER_STEP * (pl.col("step") != pl.col("step_master")).mean().fill_null(0)
        + _CLOCK_DOUBT / 2
        - doubt,
    )
