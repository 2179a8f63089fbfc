"""Windows of iterations, from the positions of an event that each has once."""

from __future__ import annotations

import polars as pl

from traceq.graph.iteration_sequence import piece_of, similarity

# Pieces are the same if they share this much of what they do.
SAME = 0.9
# A piece is a whole iteration if it has this much of what all iterations have.
COMPLETE = 0.9
# This share of an iteration may be left over before the first one and behind the last.
LEFT_OVER = 0.15


def windows_of(
    sequence: pl.DataFrame, grams: pl.DataFrame, anchor: pl.Series
) -> pl.DataFrame:
    """Return the start and end of each iteration, without those that are cut.

    What the host does before the first event of an iteration, as loading data, is of
    it. Before the first one of all that is as long as before most others, at most.
    """
    regular = _regular(grams, anchor)
    borders = _borders(sequence, regular)
    pieces = sequence.with_columns(piece=piece_of(sequence["at"], borders))
    whole = _whole(pieces, regular, borders)
    spans = (
        pieces.with_columns(piece=_with_rests(pieces["piece"], whole))
        .group_by("piece")
        .agg(pl.col("ts").min(), pl.col("end").max())
        .sort("piece")
    )
    before = pl.col("end").cum_max().shift(1)
    gap = (pl.col("ts") - before).median().cast(pl.Int64).clip(0)
    first = (pl.col("ts") - gap).clip(0)
    return (
        spans.with_columns(ts=pl.min_horizontal("ts", before.fill_null(first)))
        .filter(pl.col("piece").is_in(whole))
        .with_columns(end=pl.max_horizontal("ts", "end"))
        .with_columns(end=pl.min_horizontal("end", pl.col("ts").shift(-1)))
        .select("ts", "end")
    )


def _with_rests(column: pl.Series, whole: list[int]) -> pl.Series:
    """Give what little is before the first whole piece, or behind the last, to it."""
    sizes = dict(column.value_counts().iter_rows())
    little = LEFT_OVER * sizes[whole[len(whole) // 2]]
    first, last = min(whole), max(whole)
    if sizes.get(first - 1, 0) <= little:
        column = column.clip(lower_bound=first)
    if sizes.get(last + 1, 0) <= little:
        column = column.clip(upper_bound=last)
    return column


def _whole(
    pieces: pl.DataFrame, regular: pl.DataFrame, borders: pl.Series
) -> list[int]:
    """Return the numbers of the pieces that are whole iterations.

    All are but what is before the first border and behind the last. These are if they
    have what all iterations have, as a prefill has, or do the same as their neighbour.
    """
    last = len(borders) - 1
    share = pl.col("gram").n_unique() / regular["gram"].n_unique()
    having = (
        regular.with_columns(piece=piece_of(regular["at"], borders))
        .group_by("piece")
        .agg(share=share)
        .join(pieces.group_by("piece").len(), on="piece")
        .filter(
            pl.col("share") >= COMPLETE,
            pl.col("len") > (1 - LEFT_OVER) * pl.col("len").median(),
        )
    )["piece"].to_list()
    neighbours = {-1: 0, last: last - 1}
    ends = [
        end
        for end, neighbour in neighbours.items()
        if end in having or _same(pieces, end, neighbour)
    ]
    return [*range(last), *ends]


def _same(pieces: pl.DataFrame, one: int, other: int) -> bool:
    """Return whether two pieces do the same work."""
    two = pieces.filter(pl.col("piece").is_in((one, other)))
    return two["piece"].n_unique() == len((one, other)) and bool(
        (similarity(two, one + other - pl.col("piece")) >= SAME).all()
    )


def _regular(grams: pl.DataFrame, anchor: pl.Series) -> pl.DataFrame:
    """Return the places of the grams that are there once in each piece."""
    count = len(anchor)
    places = grams.filter(pl.col("count") == count)
    rows = places.with_columns(piece=piece_of(places["at"], anchor) % count)
    return rows.filter(pl.col("piece").n_unique().over("gram") == count)


def _borders(sequence: pl.DataFrame, regular: pl.DataFrame) -> pl.Series:
    """Return the places where iterations begin.

    Best where the fewest events are in none, as a recording of whole iterations begins
    and ends with one; then after the optimizer, a wait, or the longest gap.
    """
    after = pl.col("optimizer").shift(1) & ~pl.col("optimizer")
    waited = pl.col("wait").shift(1) & ~pl.col("wait")
    evidence = sequence.select(
        "at", "gap", told=pl.when(after).then(2).when(waited).then(1).otherwise(0)
    )
    # Of things that take turns, those that are there before another one for the first
    # time are all before it, and the others all behind its last place.
    share = pl.int_range(pl.len()) / pl.len()
    before = pl.col("first") / pl.col("length")
    behind = (sequence.height - pl.col("last")) / pl.col("length")
    long = 1 - LEFT_OVER
    first = pl.when((share >= COMPLETE) & (before > long)).then(0)
    last = pl.when((share <= 1 - COMPLETE) & (behind > long)).then(0)
    left = first.otherwise(_from_whole(before)) + last.otherwise(_from_whole(behind))
    best = (
        regular.join(evidence, on="at", how="left")
        .sort("gram", "at")
        .group_by("gram", maintain_order=True)
        .agg(
            pl.col("told", "gap").median(),
            first=pl.col("at").first(),
            last=pl.col("at").last(),
            length=pl.col("at").diff().median(),
        )
        .sort("first")
        .with_columns(left=pl.when(left <= LEFT_OVER).then(left).otherwise(1))
        .sort(
            "left",
            "told",
            "gap",
            "first",
            descending=(False, True, True, False),
            nulls_last=True,
        )
    )["gram"].first()
    borders = regular.filter(pl.col("gram") == best)["at"].sort()
    return _from_the_start(sequence, borders)


def _from_the_start(sequence: pl.DataFrame, borders: pl.Series) -> pl.Series:
    """Move borders to the start of the recording if it begins with an iteration."""
    ahead = int(borders[0])
    moved = borders - ahead
    length = float(moved[-1]) / (len(moved) - 1)
    last = sequence.height - float(moved[-1])
    if abs(last - length) > LEFT_OVER * length:
        return borders
    inside = sequence.select(
        "name", into=pl.col("at") - moved.gather(piece_of(sequence["at"], moved))
    ).filter(pl.col("into") < ahead)
    same = (inside["name"] == sequence["name"].gather(inside["into"])).sum()
    return moved if same >= SAME * inside.height else borders


def _from_whole(length: pl.Expr) -> pl.Expr:
    """Return the distance of a length, in iterations, from 0 or 1."""
    return pl.min_horizontal(length, (length - 1).abs())
