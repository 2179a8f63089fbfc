"""Time of a rank's peers for the same stretch of work.

A stretch is a rank's own time from one collective to the next. Its peers are those of
the same slot: the same collective of the same step, in whichever group, and of the same
stage of a pipeline. With two ranks the median of both is the faster one.
"""

from __future__ import annotations

import polars as pl

from traceq.ranks.timeline import PARTS, READY

_SIZED = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")
_TWO = 2
IDEAL = "ideal"
"""Prefix of the columns with the peers' median."""


def slots(cells: pl.DataFrame) -> pl.DataFrame:
    """Return instances with their ``slot``, and ``place``, the slot in any step.

    ``usual`` is the median transfer of the slot, or of the place if it has only one.
    """
    sized = pl.when(pl.col("kind").is_in(_SIZED)).then(pl.col("bytes").cast(pl.String))
    likeness = pl.format(
        "{} {} {}", "kind", pl.coalesce("group_size", "ranks"), sized.fill_null("")
    )
    step = pl.col("step").cast(pl.String).fill_null("-")
    usual = pl.when(pl.len().over("slot") >= _TWO)
    return (
        cells.with_columns(likeness=likeness)
        .with_columns(place=pl.concat_str("likeness", "ordinal", separator=" #"))
        .with_columns(slot=pl.concat_str("place", step, separator=" @"))
        .with_columns(
            usual=usual.then(_median("transfer").over("slot")).otherwise(
                _median("transfer").over("place")
            )
        )
        .sort("instance")
        .drop("likeness")
    )


def _median(column: str) -> pl.Expr:
    return pl.col(column).quantile(0.5, interpolation="lower")


def with_stretches(meetings: pl.DataFrame) -> pl.DataFrame:
    """Return the meetings of all ranks with the number of their ``stretch``.

    A stretch ends when its collective is ready; the first one of a rank began before
    its window, and is numbered 0.
    """
    ends = (pl.col("meeting") == READY) & pl.col("instance").is_not_null()
    return meetings.with_columns(
        stretch=(ends.cum_sum() - ends.cast(pl.UInt32)).over("rank").cast(pl.Int32),
        ends=ends,
    )


def stretches(meetings: pl.DataFrame, slotted: pl.DataFrame) -> pl.DataFrame:
    """Return the stretches of all ranks, and what they take at the peers' median.

    ``own`` and PARTS are what the rank took, ``ideal`` and ``ideal_`` with the part
    what its peers did; the rank's own where it has none; ``spread`` is how far ranks
    are from that at the median. What a rank was held by ranks that are not known is
    not late: it is in both.
    """
    whole = (
        meetings.filter(pl.col("stretch") > 0)
        .group_by("rank", "stretch", maintain_order=True)
        .agg(
            pl.col(*PARTS, "own", "issue", "elsewhere").sum(),
            pl.col("stage").first(),
            instance=pl.col("instance").filter("ends").first(),
        )
        .drop_nulls("instance")
        .join(
            slotted.select("instance", "slot", "place"),
            on="instance",
            maintain_order="left",
        )
    )
    whole = whole.with_columns(here=pl.col("own") - pl.col("elsewhere"))
    columns = ("here", *PARTS, "issue")
    medians = [_median(column) for column in columns]
    step, any_step = (
        [median.over(key, "stage") for median in medians] for key in ("slot", "place")
    )
    alone = pl.len().over("slot", "stage") < _TWO
    rows = whole.with_columns(
        pl.when(alone).then(rough).otherwise(fine).alias(_ideal(column))
        for column, fine, rough in zip(columns, step, any_step, strict=True)
    )
    return rows.with_columns(pl.col(IDEAL) + pl.col("elsewhere")).with_columns(
        spread=(pl.col("own") - pl.col(IDEAL)).abs().median().over("slot", "stage")
    )


def _ideal(column: str) -> str:
    return IDEAL if column == "here" else f"{IDEAL}_{column}"


def retimed(meetings: pl.DataFrame, targets: pl.DataFrame) -> pl.DataFrame:
    """Return ``own`` and ``issue`` of each meeting, if stretches took ``target``.

    The targets have ``rank``, ``stretch``, ``own`` and ``target``; stretches that are
    not among them stay as they are. What a stretch gains or loses is spread over it;
    the host is as its peers' in those that have ``ideal_issue``.
    """
    joined = meetings.select("rank", "stretch", "own", "issue", "ends").join(
        targets.select("rank", "stretch", "target", f"{IDEAL}_issue", whole="own"),
        on=["rank", "stretch"],
        how="left",
        maintain_order="left",
    )
    own, issue = pl.col("own").cast(pl.Float64), pl.col("issue").cast(pl.Float64)
    scaled = own * pl.col("target") / pl.col("whole")
    return joined.select(
        own=pl.when(pl.col("target").is_null())
        .then(own)
        .when(pl.col("whole") > 0)
        .then(scaled)
        .when(pl.col("ends"))
        .then(pl.col("target").cast(pl.Float64))
        .otherwise(0.0),
        issue=pl.when(pl.col("ends"))
        .then(pl.min_horizontal(issue, f"{IDEAL}_issue"))
        .otherwise(issue),
    )
