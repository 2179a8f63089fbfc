"""Significance of a rank's lateness: more than chance.

A rank that is always late is late by about the same in every step; one that was late by
chance is not. The lateness of a rank in a step, compared with the others, is a sample,
and its mean over the steps has a standard error. If there is one step, its collectives
are the sample: what ranks vary by before each of them, without those that are late
most, of which there may be several.
"""

from __future__ import annotations

from bisect import bisect_right

import polars as pl

from traceq.analysis.base.assumptions import SURE_OF_MANY
from traceq.ranks.peers import IDEAL
from traceq.ranks.timeline import COMPUTE, PARTS

# Student's distribution: by degrees of freedom, the standard errors that chance exceeds
# once in 1,000 times, and once in 10,000 times.
_STUDENT = {
    1: (318.3, 3183.1),
    2: (22.3, 70.7),
    3: (10.2, 22.2),
    4: (7.17, 13.0),
    5: (5.89, 9.68),
    6: (5.21, 8.02),
    7: (4.79, 7.06),
    8: (4.50, 6.44),
    10: (4.14, 5.69),
    12: (3.93, 5.26),
    15: (3.73, 4.88),
    20: (3.55, 4.54),
    30: (3.39, 4.23),
    60: (3.23, 3.96),
    120: (3.16, 3.84),
}
_RARE, _RARER = 0, 1
_MANY = 16
_PAIR = 2
_LEAST = 3
# Of one step, one rank of this many may be late, and is not counted as noise.
_SUSPECTED = 4
_PRIOR = 4
# Where steps were not recorded, the window is cut into this many.
_BLOCKS = 8
# In more places than this, one would be late in every step by chance.
_MOST_PLACES = 20


def surely_late(compared: pl.DataFrame, instances: pl.DataFrame) -> pl.DataFrame:
    """Return the stretches with ``sure`` and ``seen``, in how many steps it was tried.

    Those that are ``firm`` are so by one part of the time alone.
    All of a rank are sure if what they add up to in a step is more than chance; else
    those before the same collective of each step, for which that can be said. Chance is
    what happens once in 1,000 times; of more than two ranks, of which the latest is
    tested, once in 10,000 times, as noise has long tails.
    """
    by_step = compared.join(
        instances.select("instance", step=_steps(instances)), on="instance"
    )
    if by_step["step"].n_unique() == 1:
        return _in_one_step(by_step)
    rare = _RARE if by_step["rank"].n_unique() <= _PAIR else _RARER
    whole = _tested(by_step.with_columns(place=pl.lit("")), rare)
    places = by_step["place"].n_unique()
    parts = _tested(by_step, _RARER) if 1 < places <= _MOST_PLACES else whole
    sure = pl.any_horizontal(
        pl.col("sure", "sure_here", "sure_part").fill_null(value=False)
    )
    return (
        by_step.join(whole.select("rank", "sure"), on="rank", how="left")
        .join(_late_in_a_part(by_step), on=["rank", "stretch"], how="left")
        .join(
            parts.select("rank", "place", sure_here="sure"),
            on=["rank", "place"],
            how="left",
        )
        .select(
            "rank",
            "stretch",
            sure=sure,
            firm=pl.col("sure_part").fill_null(value=False),
            seen=pl.lit(by_step["step"].n_unique(), pl.Int64),
        )
    )


def _steps(instances: pl.DataFrame) -> pl.Series:
    """Return the step of each collective, or a piece of the window."""
    if instances["step"].null_count() < instances.height:
        return instances["step"]
    return (instances["end"].rank("ordinal") - 1) * _BLOCKS // max(1, instances.height)


def _tested(samples: pl.DataFrame, rare: int) -> pl.DataFrame:
    """Return for each ``rank`` and ``place`` whether it is surely late: ``sure``."""
    late = samples.group_by("rank", "place", "step").agg(
        late=(pl.col("own") - pl.col(IDEAL)).sum().cast(pl.Float64)
    )
    others = pl.len().over("place", "step") - 1
    mean = (pl.col("late").sum().over("place", "step") - pl.col("late")) / others
    late = late.with_columns(beyond=pl.col("late") - mean).filter(others > 0)
    steps = _over_steps(late)
    scored = pl.concat(
        [
            steps.filter(pl.col("freedom") >= _LEAST),
            _over_ranks(late).join(
                steps.filter(pl.col("freedom") >= _LEAST), on="place", how="anti"
            ),
        ]
    )
    ranks = samples["rank"].n_unique()
    needed = {
        entry: _needed(entry, ranks, rare) for entry in scored["freedom"].unique()
    }
    return scored.select(
        "rank",
        "place",
        sure=pl.col("beyond")
        >= pl.col("freedom").replace_strict(needed, return_dtype=pl.Float64),
    )


def _late_in_a_part(samples: pl.DataFrame) -> pl.DataFrame:
    """Return the stretches in which a part of its time makes a rank surely late.

    They are ``rank``, ``stretch`` and ``sure_part``. A rank may be late by less than
    the noise of all that it does, and still by more than that of one part.
    """
    nothing = samples.select("rank", "stretch", sure_part=pl.lit(value=True)).head(0)
    sure = [nothing]
    late = pl.col("own") - pl.col(IDEAL)
    for part in PARTS:
        beyond = pl.col(part) - pl.col(f"{IDEAL}_{part}")
        explained = samples.filter(
            beyond.sum().over("rank") >= late.sum().over("rank") / 2
        )
        rows = samples.with_columns(
            pl.col(f"{IDEAL}_{part}").alias(IDEAL), own=part, place=pl.lit("")
        )
        ranks = _tested(rows, _RARER).filter("sure")
        sure.append(
            explained.filter(beyond > 0)
            .join(ranks, on="rank", how="semi")
            .select("rank", "stretch", sure_part=pl.lit(value=True))
        )
    return pl.concat(sure).unique()


def _in_one_step(samples: pl.DataFrame) -> pl.DataFrame:
    """Return the stretches of one step with ``sure``, as ``surely_late`` does.

    A rank may be late by less than the noise of all that it does, and still by more
    than that of one part: no other rank allocates memory, say.
    """
    late = (pl.col("own") - pl.col(IDEAL)).cast(pl.Float64)
    rows = samples.select(
        "rank",
        "stretch",
        "place",
        pl.col(IDEAL, *(f"{IDEAL}_{part}" for part in PARTS)).cast(pl.Float64),
        late=late,
        **{
            part: (pl.col(part) - pl.col(f"{IDEAL}_{part}")).cast(pl.Float64)
            for part in PARTS
        },
    )
    sure = [_beyond_others(rows, "late", IDEAL)]
    for part in PARTS:
        explained = rows.filter(pl.col(part) >= pl.col("late") / 2)
        beyond = _beyond_others(rows, part, f"{IDEAL}_{part}")
        sure.append(beyond.join(explained, on=["rank", "stretch"], how="semi"))
    whole = rows.filter(
        pl.col(COMPUTE).sum().over("rank") >= pl.col("late").sum().over("rank") / 2
    )
    slower = _slower_everywhere(rows).join(whole, on=["rank", "stretch"], how="semi")
    either = pl.concat([*sure, slower]).unique().with_columns(sure=pl.lit(value=True))
    keys = ["rank", "stretch"]
    return (
        samples.select(keys)
        .join(either, on=keys, how="left", maintain_order="left")
        .join(
            slower.with_columns(firm=pl.lit(value=True)),
            on=keys,
            how="left",
            maintain_order="left",
        )
        .with_columns(
            pl.col("sure", "firm").fill_null(value=False), seen=pl.lit(1, pl.Int64)
        )
    )


def _beyond_others(rows: pl.DataFrame, late: str, usual: str) -> pl.DataFrame:
    """Return ``rank`` and ``stretch`` of those that are later than chance."""
    rows = rows.select("rank", "stretch", "place", late=late, usual=usual)
    ranks = rows["rank"].n_unique()
    tested, places = _suspects(rows)
    beyond = pl.col("late") - pl.col("mean")
    error = (pl.col("variance") * (1 + 1 / pl.col("others"))).sqrt()
    whole = _errors(beyond.sum(), (error**2).sum().sqrt()).over("rank")
    weight = _weight(places["variance"])
    others = ranks - tested["rank"].n_unique()
    needed = _needed(int((others - 1) * weight), ranks, _rarity(weight))
    here = _needed(others - 1 + _PRIOR, ranks, _RARER)
    sure = (beyond > 0) & ((whole >= needed) | (_errors(beyond, error) >= here))
    return tested.filter(sure).select("rank", "stretch")


def _slower_everywhere(rows: pl.DataFrame) -> pl.DataFrame:
    """Return ``rank`` and ``stretch`` of those whose kernels are slower than chance.

    A slower GPU is slower by the same ratio in every stretch: short ones tell as much
    of that as long ones, whose noise is as large as all others' time together.
    """
    rows = rows.select(
        "rank", "stretch", "place", late=COMPUTE, usual=f"{IDEAL}_{COMPUTE}"
    ).filter(pl.col("usual") > 0)
    if not rows.height:
        return rows.select("rank", "stretch")
    ranks = rows["rank"].n_unique()
    tested, places = _suspects(rows)
    places = places.filter(pl.col("usual") > 0)
    usual, variance = pl.col("usual"), pl.col("variance").clip(lower_bound=1.0)
    beyond = pl.col("late") - pl.col("mean")
    error = (usual**2 / variance * (1 + 1 / pl.col("others"))).sum().sqrt()
    ratio = _errors((usual / variance * beyond).sum(), error).over("rank")
    weight = _weight(places.select(usual**2 / variance).to_series())
    others = ranks - tested["rank"].n_unique()
    needed = _needed(int((others - 1) * weight), ranks, _RARER)
    slower = tested.filter(ratio >= needed)
    return slower.filter(beyond > 0).select("rank", "stretch")


def _suspects(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the stretches of the latest ranks, and the places as others vary there."""
    of_rank = rows.group_by("rank").agg(pl.col("late").sum())
    suspects = of_rank.sort("late", "rank", descending=[True, False])["rank"].head(
        max(1, of_rank.height // _SUSPECTED)
    )
    suspect = pl.col("rank").is_in(suspects.implode())
    places = _varied(rows.filter(~suspect))
    return rows.filter(suspect).drop("usual").join(places, on="place"), places


def _weight(variances: pl.Series) -> float:
    """Return how many places are of weight for the sum of all."""
    squares = float((variances**2).sum())
    return float(variances.sum()) ** 2 / squares if squares else 1.0


def _rarity(places: float) -> int:
    """Return how rare chance must be; a few samples do not show the tail of noise."""
    return _RARE if places >= _PRIOR else _RARER


def _varied(late: pl.DataFrame) -> pl.DataFrame:
    """Return ``mean`` and ``variance`` of ranks at each place, and how many it has.

    A few ranks tell little of their variance: what all places vary by, as a share of
    their time, counts as some more ranks.
    """
    places = (
        late.group_by("place")
        .agg(
            mean=pl.col("late").mean(),
            own=pl.col("late").var(),
            usual=pl.col("usual").mean(),
            others=pl.len().cast(pl.Int64),
        )
        .drop_nulls("own")
        .sort("place")
    )
    common = pl.col("own").sum() / (pl.col("usual") ** 2).sum().clip(lower_bound=1.0)
    known = pl.col("others") - 1
    return places.with_columns(
        variance=(known * pl.col("own") + _PRIOR * common * pl.col("usual") ** 2)
        / (known + _PRIOR)
    )


def _over_steps(late: pl.DataFrame) -> pl.DataFrame:
    """Compare a rank's mean over the steps with how much ranks vary over them."""
    off = pl.col("beyond") - pl.col("beyond").mean().over("rank", "place")
    ranks = pl.col("rank").n_unique().over("place")
    freedom = pl.len().over("place").cast(pl.Int64) - ranks.cast(pl.Int64)
    varied = late.with_columns(
        freedom=freedom,
        common=((off**2).sum().over("place") / freedom.clip(lower_bound=1)).sqrt(),
    )
    # A rank that varies more than others has an error of its own, of which few steps
    # tell little: what all vary by counts as some more steps.
    common = pl.col("common").first()
    own = (pl.len() - 1) * pl.col("beyond").var().fill_null(0.0)
    spread = pl.max_horizontal(
        common, ((_PRIOR * common**2 + own) / (_PRIOR + pl.len() - 1)).sqrt()
    )
    return varied.group_by("rank", "place").agg(
        pl.col("freedom").first(),
        beyond=_errors(pl.col("beyond").mean(), spread / pl.len().sqrt()),
    )


def _over_ranks(late: pl.DataFrame) -> pl.DataFrame:
    """Compare a rank with how much the others vary among themselves."""
    whole = late.group_by("rank", "place").agg(pl.col("late").sum())
    count = pl.len().over("place").cast(pl.Int64) - 1
    some = count.clip(lower_bound=1)
    others = (pl.col("late").sum().over("place") - pl.col("late")) / some
    squares = (pl.col("late") ** 2).sum().over("place") - pl.col("late") ** 2
    spread = (squares / some - others**2).clip(lower_bound=0)
    error = (spread * (count + 1) / (count - 1).clip(lower_bound=1)).sqrt()
    return whole.select(
        "rank",
        "place",
        freedom=count - 1,
        beyond=_errors(pl.col("late") - others, error),
    )


def _errors(mean: pl.Expr, error: pl.Expr) -> pl.Expr:
    """Return a mean in standard errors; more than any where there is no variation."""
    certain = pl.when(mean > 0).then(float("inf")).otherwise(0.0)
    return pl.when(error > 0).then(mean / error).otherwise(certain)


def _needed(freedom: int, ranks: int, rare: int) -> float:
    sizes = list(_STUDENT)
    if freedom < sizes[0]:
        return float("nan")
    enough = _STUDENT[sizes[bisect_right(sizes, freedom) - 1]][rare]
    # The worst of many ranks is further off by chance.
    return max(enough, SURE_OF_MANY) if ranks >= _MANY else enough
