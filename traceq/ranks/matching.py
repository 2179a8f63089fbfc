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
    from collections.abc import Iterable, Iterator

_BY_ID, _BY_NUMBER, _BY_STEP, _BY_ORDER = "id", "number", "step", "order"
_KEY = "key"
# Maximum weight of a differing clock against a shift.
_CLOCK_DOUBT = 4.0
# A kernel that does not overlap with its partner speaks against a shift this much.
_IMPOSSIBLE = 5.0
# And so do steps with other numbers.
_OTHER_STEP = 6.0
# Shifts are tried within this many collectives where there are very many.
_ALL_SHIFTS = 300
_NEAR = 150


@dataclass(frozen=True)
class Matched:
    """The collectives of all ranks, and which of them are one."""

    cells: pl.DataFrame
    """One row for a rank's part of a collective, with ``instance``; null if no other
    rank is known to take part."""
    by: dict[str, int]
    """Number of matches by ``id``, ``number``, ``step`` and ``order``."""
    apart: tuple[tuple[str, tuple[int, ...]], ...]
    """Lanes with the ranks, by row, that could not be aligned with the others."""


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
    ordered, apart = _by_order(rest)
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
        apart,
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


def _by_order(
    rows: pl.DataFrame,
) -> tuple[pl.DataFrame, tuple[tuple[str, tuple[int, ...]], ...]]:
    """Match by order: ``cell`` and ``key``, and who could not be aligned."""
    nothing = pl.DataFrame(
        schema={"cell": rows.schema["cell"], _KEY: pl.String(), "rank": pl.Int64()}
    ).select("cell", _KEY)
    parts, apart = [nothing], []
    for (lane,), part in rows.partition_by("lane", as_dict=True).items():
        ranked = part.sort("rank", "start", "end").with_columns(
            place=pl.int_range(pl.len()).over("rank")
        )
        for number, cluster in enumerate(_clusters(ranked)):
            if isinstance(cluster, int):
                apart.append((str(lane), cluster))
                continue
            key = pl.format("{} {} {}", pl.lit(lane), pl.lit(number), "place")
            parts.append(cluster.select("cell", key=key))
    lanes: dict[str, list[int]] = {}
    for lane_name, rank in apart:
        lanes.setdefault(lane_name, []).append(rank)
    return pl.concat(parts), tuple((name, tuple(all_)) for name, all_ in lanes.items())


def _clusters(rows: pl.DataFrame) -> Iterator[pl.DataFrame | int]:
    """Yield sets of ranks that meet, with common places, and ranks that meet nobody."""
    while rows.height:
        counts = (
            rows.group_by("rank").len().sort("len", "rank", descending=[True, False])
        )
        first = counts["rank"][0]
        cluster = _grown(rows, first)
        ranks = cluster["rank"].unique()
        if len(ranks) > 1:
            yield cluster
        else:
            yield int(first)
        rows = rows.filter(~pl.col("rank").is_in(ranks.implode()))


def _grown(rows: pl.DataFrame, first: int) -> pl.DataFrame:
    """Return the ranks that can be aligned with one, its places as theirs."""
    cluster = rows.filter(pl.col("rank") == first)
    master = cluster.select("place", "token", "step", "start", "end")
    waiting = rows.filter(pl.col("rank") != first)
    offsets: list[int] = []
    while waiting.height:
        shifts = _shifts(waiting, _with_rarity(master), _clock_trust(offsets))
        if not shifts.height:
            break
        offsets += shifts["offset"].abs().to_list()
        sizes = (
            waiting.join(shifts, on="rank", maintain_order="left")
            .with_columns(place=pl.col("place") + pl.col("shift"))
            .with_columns(pl.col("start", "end") - pl.col("offset"))
        )
        cluster = pl.concat(
            [
                cluster,
                waiting.join(shifts, on="rank", maintain_order="left")
                .with_columns(place=pl.col("place") + pl.col("shift"))
                .select(cluster.columns),
            ]
        )
        waiting = waiting.join(shifts, on="rank", how="anti")
        # Places that the first rank did not record: others may share them.
        more = sizes.select("place", "token", "step", "start", "end").unique(
            "place", keep="first", maintain_order=True
        )
        master = pl.concat([master, more.join(master, on="place", how="anti")]).sort(
            "place"
        )
    return cluster


def _clock_trust(offsets: list[int]) -> float:
    """Return the plausible difference of clocks: that of the aligned ranks."""
    if not offsets:
        return TRUSTED_CLOCK_NS
    return min(TRUSTED_CLOCK_NS, 4 * ALIGNED_END_NS + 3 * median(offsets))


def _with_rarity(master: pl.DataFrame) -> pl.DataFrame:
    """Add how far off the time to each end would be if another one were taken for it.

    A time that recurs in every step tells little, however well it fits.
    """
    gaps = (
        master.sort("place")
        .select("place", since=pl.col("end").diff())
        .drop_nulls()
        .sort("since")
        .with_columns(
            near=pl.min_horizontal(
                pl.col("since") - pl.col("since").shift(1),
                pl.col("since").shift(-1) - pl.col("since"),
            )
        )
    )
    usual = USUAL_NOISE * pl.col("since")
    rare = pl.max_horizontal(
        pl.lit(2.0 * ALIGNED_END_NS), pl.min_horizontal("near", usual)
    )
    return master.join(
        gaps.select("place", rarity=rare), on="place", how="left"
    ).with_columns(pl.col("rarity").fill_null(2.0 * ALIGNED_END_NS))


def _tried(longest: int, count: int) -> Iterable[int]:
    """Return the shifts that are worth a try."""
    if max(longest, count) <= _ALL_SHIFTS:
        return range(1 - longest, count)
    return range(-_NEAR, _NEAR + 1)


def _paired(rows: pl.DataFrame, master: pl.DataFrame, shift: int) -> pl.DataFrame:
    """Pair places, and compare the times from one end to the next."""
    return (
        rows.select(
            "rank", "token", "step", "start", "end", place=pl.col("place") + shift
        )
        .join(master, on="place", suffix="_master", maintain_order="left")
        .with_columns(
            same=pl.col("token") == pl.col("token_master"),
            since=pl.col("end_master").diff().over("rank"),
            own=pl.col("end").diff().over("rank"),
            offset=pl.col("end") - pl.col("end_master"),
        )
    )


def _off() -> pl.Expr:
    return (pl.col("own") - pl.col("since")).abs()


def _shifts(rows: pl.DataFrame, master: pl.DataFrame, clock: float) -> pl.DataFrame:
    """Return ``rank``, ``shift``, ``offset`` of the ranks that can be aligned."""
    longest = highest(rows["place"]) + 1
    first, last = lowest(master["place"]), highest(master["place"])
    tried = [
        _scored(_paired(rows, master, shift), clock).with_columns(
            shift=pl.lit(shift, pl.Int64)
        )
        for shift in _tried(longest - first, last + 1)
    ]
    scores = pl.concat(tried).sort("rank", "score", descending=[False, True])
    if not scores.height:
        return scores.select("rank", "shift", "offset")
    second = pl.col("score").get(1, null_on_oob=True).fill_null(-float("inf"))
    best = scores.group_by("rank", maintain_order=True).agg(
        pl.col("shift", "offset", "score").first(), second=second
    )
    sure = (pl.col("score") - pl.col("second") >= SURE_OF_SHIFT) & (
        pl.col("score") > -1.0
    )
    return best.filter(sure).select("rank", "shift", "offset")


def _scored(pairs: pl.DataFrame, clock: float) -> pl.DataFrame:
    """Return for each rank how much speaks for the shift: ``score``, ``offset``."""
    width = ALIGNED_END_NS + CLOCK_DRIFT * pl.col("since").abs()
    wide = pl.col("rarity") + CLOCK_DRIFT * pl.col("since").abs()
    evidence = (
        (wide / width).log()
        + (1 + (_off() / wide) ** 2).log()
        - (1 + (_off() / width) ** 2).log()
    )
    offset = pl.col("offset").median()
    apart = (
        (pl.col("start") - pl.col("offset").median() - pl.col("end_master"))
        > ALIGNED_END_NS * 10
    ) | (
        (pl.col("start_master") - pl.col("end") + pl.col("offset").median())
        > ALIGNED_END_NS * 10
    )
    doubt = pl.min_horizontal(pl.lit(_CLOCK_DOUBT), pl.col("offset").abs() / clock)
    return (
        pairs.group_by("rank")
        .agg(
            offset=offset.cast(pl.Int64),
            evidence=evidence.sum(),
            apart=apart.sum(),
            same=pl.col("same").all(),
            other_step=(pl.col("step") != pl.col("step_master")).mean().fill_null(0),
        )
        .filter("same")
        .select(
            "rank",
            "offset",
            score=pl.col("evidence")
            - _IMPOSSIBLE * pl.col("apart")
            - _OTHER_STEP * pl.col("other_step")
            - doubt,
        )
    )
