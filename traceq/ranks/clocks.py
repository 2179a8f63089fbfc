"""Clock offsets between ranks: a collective ends on all its ranks at once.

The offset of a rank is the median difference of its ends from those of the others, and
where the window is long enough to show it, a drift. Ranks that share no collective are
compared over the ranks between them.

A profiler may set its clocks again in the middle: then the offset has a step. The ends
of one collective differ with who came last, so that neighbouring differences are alike:
the error of an offset is that of a bootstrap of whole blocks of the window. And no
kernel starts before its launch: where one does, the clocks are off by at least that.
"""

from __future__ import annotations

import random

import polars as pl

from traceq.analysis.base.assumptions import (
    ALIGNED_END_NS,
    CLOCK_DRIFT,
    LEAST_ENDS_FOR_DRIFT,
    SHORTEST_FOR_DRIFT_NS,
)
from traceq.ranks.clock_steps import STEP, STEP_AT, clock_steps

_REFINED = 4
_TIMES = ("launched", "ready", "start", "end", "held")
# Times the ends' own scatter that a drift must add up to, to be believed.
_VISIBLE = 3.0
# Number of blocks that the window is cut into, and of draws of them.
_BLOCKS = 8
_DRAWN = 200
# Number of ends at the beginning and at the end of a window to look at, at least.
_EDGE = 3
# Of the draws 95% are between these; few blocks vary less than many windows do, by the
# ratio of Student's quantile for 7 degrees of freedom to the normal one.
_INTERVAL = (0.025, 0.975)
_FEW_BLOCKS = 1.2


def clocks(cells: pl.DataFrame) -> pl.DataFrame:
    """Return for each rank ``offset``, ``drift``, ``since``, ``error`` and ``ends``.

    A rank's clock shows ``offset + drift * (clock - since)`` nanoseconds more than that
    of the first rank, and ``clock_step`` more from ``clock_step_at`` on. The ``error``
    is that of the offset, half of an interval of 95%; null where the rank shares no
    collective with others.
    """
    shared = _shared_ends(cells)
    ends = shared.select("rank", "instance", "end")
    ranks = cells.select(pl.col("rank").unique().sort())
    if not ends.height:
        return ranks.with_columns(
            offset=pl.lit(0, pl.Int64),
            drift=pl.lit(0.0),
            since=pl.lit(0, pl.Int64),
            error=pl.lit(None, pl.Float64),
            ends=pl.lit(0, pl.UInt32),
            **{STEP: pl.lit(0, pl.Int64), STEP_AT: pl.lit(None, pl.Int64)},
        )
    counts = ends.group_by("rank").agg(ends=pl.len())
    lines = (
        ranks.join(_lines(ends, _offsets(ends)), on="rank", how="left")
        .join(counts, on="rank", how="left")
        .with_columns(
            pl.col("offset", "since", "ends").fill_null(0),
            pl.col("drift").fill_null(0.0),
        )
    )
    fitted = _from_first(_with_steps(shared, _from_first(lines)))
    return fitted.join(_errors(shared, fitted), on="rank", how="left").sort("rank")


def _shared_ends(cells: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives that several ranks recorded.

    What one rank sends another may receive later: that counts where ranks share nothing
    else.
    """
    shared = cells.drop_nulls("instance")
    at_once = shared.filter(~pl.col("kind").is_in(("send", "recv")))
    enough = at_once["rank"].n_unique() == shared["rank"].n_unique()
    return at_once if enough else shared


def _from_first(fitted: pl.DataFrame) -> pl.DataFrame:
    """Count offsets and drifts from the first rank that shares a collective."""
    first = fitted.filter(pl.col("ends") > 0).row(0, named=True)
    # The same moment on the clock of the first rank.
    there = pl.col("since") - pl.col("offset") + first["offset"]
    before = there - first["since"]
    theirs = first["offset"] + (first["drift"] * before).round().cast(pl.Int64)
    shared = pl.col("ends") > 0
    return fitted.with_columns(
        offset=pl.when(shared).then(pl.col("offset") - theirs).otherwise(0),
        drift=pl.when(shared).then(pl.col("drift") - first["drift"]).otherwise(0.0),
    )


def on_one_clock(cells: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return cells, or other rows with ``rank``, with times as the first rank's."""
    times = [name for name in (*_TIMES, "at") if name in cells.columns]
    line = ["offset", "drift", "since"]
    line += [name for name in (STEP, STEP_AT) if name in ranks.columns]
    shifts = cells.join(
        ranks.select("rank", *line), on="rank", how="left", maintain_order="left"
    )
    moved = [
        pl.col(time)
        - pl.col("offset")
        - (pl.col("drift") * (pl.col(time) - pl.col("since"))).round().cast(pl.Int64)
        - (_stepped(time) if STEP in line else 0)
        for time in times
    ]
    return shifts.with_columns(moved).drop(line)


def _stepped(time: str) -> pl.Expr:
    """Return by how much the clock was set before that time."""
    return pl.when(pl.col(time) >= pl.col(STEP_AT)).then(STEP).otherwise(0)


def _with_steps(cells: pl.DataFrame, lines: pl.DataFrame) -> pl.DataFrame:
    """Add the step of each clock, from which on it is off by another amount."""
    off = _from_base(cells.with_columns(at="end"), lines.with_columns(drift=0.0))
    left = _from_base(cells.with_columns(at="end"), lines)
    steps = clock_steps(off.with_columns(left=left["off"]))
    joined = lines.join(steps, on="rank", how="left", maintain_order="left")
    has = pl.col("before").is_not_null()
    stepped = joined.with_columns(
        pl.col(STEP).fill_null(0),
        offset=pl.col("offset") + pl.col("before").fill_null(0),
        drift=pl.when(has).then(0.0).otherwise("drift"),
    ).drop("before")
    if not steps.height:
        return stepped
    # What a line made of the step may be a drift on both sides of it, or none.
    ends = cells.select("rank", "instance", "end")
    for _ in range(_REFINED):
        line = _refitted(ends, stepped)
        stepped = stepped.drop("offset", "drift", "since").join(
            line, on="rank", maintain_order="left"
        )
    return stepped


def _from_base(cells: pl.DataFrame, lines: pl.DataFrame) -> pl.DataFrame:
    """Return ``rank``, ``at`` and ``off``, against the first rank or who was there."""
    moved = on_one_clock(cells.rename({"at": "seen"}), lines)
    theirs = moved.filter(pl.col("rank") == lines["rank"].min()).select(
        "instance", base="end"
    )
    base = pl.coalesce("base", pl.col("end").median().over("instance"))
    return moved.join(theirs, on="instance", how="left", maintain_order="left").select(
        "rank", at="seen", off=pl.col("end") - base
    )


def _offsets(ends: pl.DataFrame) -> pl.DataFrame:
    """Return ``rank`` and ``offset``: chained over shared collectives, then refined."""
    offsets = _chained(ends)
    for _ in range(_REFINED):
        offsets = _measured(ends, offsets)
    return offsets


def _chained(ends: pl.DataFrame) -> pl.DataFrame:
    """Give every rank an offset from those that it shares collectives with."""
    schema = {"rank": ends.schema["rank"], "offset": pl.Int64()}
    offsets = pl.DataFrame(schema=schema)
    waiting = ends["rank"].unique().sort()
    while len(waiting):
        measured = _measured(ends, offsets) if offsets.height else offsets
        if measured.height == offsets.height:
            # Nobody left shares a collective with those: another set begins.
            seed = pl.DataFrame({"rank": waiting[:1], "offset": [0]}, schema=schema)
            measured = pl.concat([offsets, seed])
        offsets = measured
        waiting = waiting.filter(~waiting.is_in(offsets["rank"].implode()))
    return offsets


def _measured(ends: pl.DataFrame, offsets: pl.DataFrame) -> pl.DataFrame:
    """Return the offsets that follow from those that are known, and these."""
    joined = ends.join(offsets, on="rank", how="left")
    true = (
        joined.drop_nulls("offset")
        .group_by("instance")
        .agg(true=(pl.col("end") - pl.col("offset")).median())
    )
    medians = (
        ends.join(true, on="instance")
        .group_by("rank")
        .agg(offset=(pl.col("end") - pl.col("true")).median().round().cast(pl.Int64))
    )
    return pl.concat([medians, offsets.join(medians, on="rank", how="anti")]).sort(
        "rank"
    )


def _lines(ends: pl.DataFrame, offsets: pl.DataFrame) -> pl.DataFrame:
    """Add the drift of each rank, where it can be seen."""
    lines = offsets.with_columns(drift=pl.lit(0.0), since=pl.lit(0, pl.Int64))
    for _ in range(_REFINED):
        lines = _refitted(ends, lines)
    return lines


def _errors(cells: pl.DataFrame, lines: pl.DataFrame) -> pl.DataFrame:
    """Return ``rank`` and ``error``, against the first rank or who else was there."""
    moved = on_one_clock(cells, lines)
    first = lines["rank"].min()
    off = _from_base(cells.with_columns(at="end"), lines)
    unlikely = moved.with_columns(
        early=pl.max_horizontal(
            pl.col("launched") - pl.col("start"),
            pl.col("launched") - pl.col("end").min().over("instance"),
        )
    )
    limits = unlikely.group_by("rank").agg(
        early=pl.col("early").max().clip(lower_bound=0).fill_null(0)
    )
    error = pl.when(pl.col("rank") != first).then(
        pl.max_horizontal("error", "edge", pl.col("early").cast(pl.Float64))
    )
    return (
        _drawn(off)
        .join(limits, on="rank")
        .join(_at_edges(off), on="rank")
        .select("rank", error=error.otherwise(0.0))
    )


def _at_edges(off: pl.DataFrame) -> pl.DataFrame:
    """Return ``rank`` and ``edge``: how far off its first and its last ends are.

    A clock that was set near the beginning or the end leaves too few ends to fit.
    """
    few = pl.max_horizontal(_EDGE, pl.len() // _BLOCKS)
    sides = (pl.col("off").head(few).median(), pl.col("off").tail(few).median())
    return (
        off.sort("rank", "at")
        .group_by("rank")
        .agg(edge=pl.max_horizontal(side.abs() for side in sides))
    )


def _drawn(off: pl.DataFrame) -> pl.DataFrame:
    """Return ``rank`` and ``error`` by a bootstrap of blocks of each rank's ends."""
    count = pl.min_horizontal(pl.len(), _BLOCKS)
    blocks = (
        off.sort("rank", "at")
        .with_columns(
            blocks=count.over("rank"),
            block=pl.int_range(pl.len()).over("rank")
            * count.over("rank")
            // pl.len().over("rank"),
        )
        .group_by("rank", "blocks", "block")
        .agg(off=pl.col("off").median())
    )
    chance = random.Random(0)  # noqa: S311 - no secret, and the same in every run
    draws = pl.DataFrame(
        {
            "draw": [draw for draw in range(_DRAWN) for _ in range(_BLOCKS)],
            "turn": [*range(_BLOCKS)] * _DRAWN,
            "at": [chance.random() for _ in range(_DRAWN * _BLOCKS)],
        }
    )
    of_rank = blocks.select("rank", "blocks").unique()
    drawn = (
        of_rank.join(draws, how="cross")
        .filter(pl.col("turn") < pl.col("blocks"))
        .with_columns(
            block=(pl.col("at") * pl.col("blocks")).floor().cast(blocks.schema["block"])
        )
        .join(blocks, on=["rank", "block"])
        .group_by("rank", "draw")
        .agg(off=pl.col("off").median(), blocks=pl.col("blocks").first())
    )
    low, high = (pl.col("off").quantile(share) for share in _INTERVAL)
    # A few ends that agree by chance do not show by how much ends differ.
    few = ALIGNED_END_NS / pl.col("blocks").first().sqrt()
    return drawn.group_by("rank").agg(
        error=pl.max_horizontal(
            _FEW_BLOCKS * low.abs(),
            _FEW_BLOCKS * high.abs(),
            pl.when(pl.col("blocks").first() < _BLOCKS).then(few).otherwise(0.0),
        )
    )


def _residuals(ends: pl.DataFrame, lines: pl.DataFrame) -> pl.DataFrame:
    """Return the residual of each end on the common clock: ``off``."""
    moved = on_one_clock(ends.with_columns(seen="end"), lines)
    return moved.with_columns(
        off=pl.col("end") - pl.col("end").median().over("instance")
    )


def _refitted(ends: pl.DataFrame, lines: pl.DataFrame) -> pl.DataFrame:
    """Fit offset and drift of each rank again, against the median of the others.

    The drift is the difference of the medians of the last and the first third.
    """
    off = _residuals(ends, lines).with_columns(
        third=(3 * pl.col("seen").rank("ordinal").over("rank") - 3)
        // pl.len().over("rank")
    )
    early, late = pl.col("third") == 0, pl.col("third") == 2  # noqa: PLR2004 - thirds
    fits = off.group_by("rank").agg(
        count=pl.len(),
        middle=pl.col("seen").median(),
        typical=pl.col("off").median(),
        rise=pl.col("off").filter(late).median() - pl.col("off").filter(early).median(),
        run=pl.col("seen").filter(late).median()
        - pl.col("seen").filter(early).median(),
        scatter=(pl.col("off") - pl.col("off").median().over("third", "rank"))
        .abs()
        .median(),
    )
    slope = pl.col("rise") / pl.col("run")
    believed = (
        (pl.col("count") >= LEAST_ENDS_FOR_DRIFT)
        & (pl.col("run") >= SHORTEST_FOR_DRIFT_NS)
        & (pl.col("rise").abs() > _VISIBLE * pl.col("scatter") / pl.col("count").sqrt())
        & (slope.abs() < 2 * CLOCK_DRIFT)
    )
    fits = fits.with_columns(more=pl.when(believed).then(slope).otherwise(0.0))
    joined = lines.join(fits, on="rank", how="left")
    # The line is kept at the middle of the rank's window.
    middle = pl.col("middle").round().cast(pl.Int64)
    moved = pl.col("offset") + pl.col("drift") * (middle - pl.col("since"))
    return joined.select(
        "rank",
        offset=(moved + pl.col("typical")).round().cast(pl.Int64),
        drift=pl.col("drift") + pl.col("more"),
        since=middle,
    )
