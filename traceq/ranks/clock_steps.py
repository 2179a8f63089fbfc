"""Steps of clocks: a profiler that sets its clock again in the middle of a recording.

From that moment on the ends of a rank differ from those of the first one by another
amount. One step of each rank is looked for, the largest; where a drift explains the
ends nearly as well, it is a drift.
"""

from __future__ import annotations

import polars as pl

from traceq.analysis.base.assumptions import ALIGNED_END_NS

STEP, STEP_AT = "clock_step", "clock_step_at"
"""By how much a rank's clock was set forward, and when on that clock."""
# Number of blocks of the window; a step is between two of them, and then found exactly.
_BLOCKS = 16
# Ends on either side of a step, at least.
_LEAST = 4
# A step leaves at most this share of the distances from the line, and is this many
# times what is left at the median.
_LEFT = 0.6
_VISIBLE = 4.0


def clock_steps(off: pl.DataFrame) -> pl.DataFrame:
    """Return ``rank``, ``before``, the clock's step and when it was, of ranks with one.

    The rows are ends: ``rank``, ``at`` on its clock, ``off`` from the first rank's if
    its clock only had an offset, and ``left``, that with the drift, too. ``before`` is
    what they are off by before the step.
    """
    ends = off.sort("rank", "at").with_columns(
        pl.col("off").cast(pl.Float64), count=pl.len().over("rank")
    )
    ends = ends.filter(pl.col("count") >= 2 * _LEAST)
    if not ends.height:
        return _nothing(off)
    rough = _between_blocks(ends)
    # An end that is far off says no more of a clock than one that is off by as much as
    # the step.
    joined = _within(ends.join(rough, on="rank", maintain_order="left"))
    # Ends before row k are off by one level and the others by the other one.
    here = pl.int_range(pl.len()).over("rank")
    gain = (pl.col("off") - pl.col("low")).abs() - (
        pl.col("off") - pl.col("high")
    ).abs()
    cost = gain.cum_sum().over("rank")
    inside = here.is_between(_LEAST - 1, pl.col("count") - _LEAST - 1)
    best = pl.when(inside).then(cost).min().over("rank")
    split = here.filter(inside & (cost == best)).first().over("rank")
    sides = joined.with_columns(after=here > split)
    early, late = (pl.col("after") == value for value in (False, True))
    levels = sides.group_by("rank", maintain_order=True).agg(
        before=pl.col("off").filter(early).median(),
        then=pl.col("off").filter(late).median(),
        **{
            STEP_AT: (
                pl.col("at").filter(early).max() + pl.col("at").filter(late).min()
            )
            // 2
        },
    )
    return _believed(sides.join(levels, on="rank"), levels)


def _within(ends: pl.DataFrame) -> pl.DataFrame:
    """Return ends whose distances from both levels are at most that of the levels."""
    step = (pl.col("high") - pl.col("low")).abs()
    least, most = pl.min_horizontal("low", "high"), pl.max_horizontal("low", "high")
    middle = pl.col("left").median().over("rank")
    return ends.with_columns(
        pl.col("off").clip(least - step, most + step),
        left=pl.col("left")
        .cast(pl.Float64)
        .clip(middle - 1.5 * step, middle + 1.5 * step),
    )


def _nothing(off: pl.DataFrame) -> pl.DataFrame:
    schema = {"rank": off.schema["rank"], "before": pl.Int64(), STEP: pl.Int64()}
    return pl.DataFrame(schema=schema | {STEP_AT: pl.Int64()})


def _between_blocks(ends: pl.DataFrame) -> pl.DataFrame:
    """Return for each rank ``low`` and then ``high``, two levels that fit best."""
    count = pl.min_horizontal("count", pl.lit(_BLOCKS))
    block = pl.int_range(pl.len()).over("rank") * count // pl.col("count")
    blocks = ends.group_by("rank", block=block).agg(pl.col("off").median())
    splits = pl.DataFrame({"split": range(1, _BLOCKS)}, schema={"split": pl.Int64})
    both = blocks.join(splits, how="cross")
    early = pl.col("block") < pl.col("split")
    fitted = (
        both.group_by("rank", "split")
        .agg(
            "off",
            "block",
            low=pl.col("off").filter(early).median(),
            high=pl.col("off").filter(~early).median(),
        )
        .drop_nulls(["low", "high"])
    )
    level = pl.when(pl.col("block") < pl.col("split")).then("low").otherwise("high")
    return (
        fitted.explode("off", "block")
        .group_by("rank", "split", "low", "high")
        .agg(cost=(pl.col("off") - level).abs().sum())
        .sort("rank", "cost", "split")
        .unique("rank", keep="first", maintain_order=True)
        .select("rank", "low", "high")
    )


def _believed(sides: pl.DataFrame, levels: pl.DataFrame) -> pl.DataFrame:
    """Return the steps that explain the ends much better than a line does."""
    level = pl.when("after").then("then").otherwise("before")
    rest = (pl.col("off") - level).abs()
    line = (pl.col("left") - pl.col("left").median()).abs()
    step = (pl.col("then") - pl.col("before")).first().abs()
    seen = (
        sides.group_by("rank")
        .agg(
            believed=(rest.sum() < _LEFT * line.sum())
            & (step > ALIGNED_END_NS)
            & (step > _VISIBLE * rest.median())
        )
        .filter("believed")
    )
    whole = pl.col("before").round().cast(pl.Int64)
    return levels.join(seen, on="rank", how="semi", maintain_order="left").select(
        "rank",
        before=whole,
        **{STEP: pl.col("then").round().cast(pl.Int64) - whole},
        **{STEP_AT: pl.col(STEP_AT)},
    )
