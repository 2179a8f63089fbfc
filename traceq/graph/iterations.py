"""Unmarked iterations, detected by repetition on the host.

The outermost ops and runtime calls are read as one sequence of names. A name that a
loop runs once per iteration, such as the embedding or the sampling of a decode loop,
occurs once per iteration, and a name in its layers many times more. So each count of a
name, or of a few names in a row, is a hypothesis; it holds if the pieces between these
places are alike. The layers of one pass are alike too: pieces count as iterations only
with a landmark in each, an op that programs run once per iteration.

A recording of whole iterations ends where it began: the rest after the last place and
before the first is one of them. A window of time cuts the first and the last: then the
rest is the end of one, and the beginning of another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.common.expressions import END, text
from traceq.graph.iteration_sequence import (
    LONGEST_GRAM,
    event_sequence,
    ngrams,
    piece_of,
    similarity,
)
from traceq.graph.iteration_windows import COMPLETE, LEFT_OVER, SAME, windows_of
from traceq.model.names import LANDMARKS

if TYPE_CHECKING:
    from traceq.graph.host import Frames

# Of all counts, those that the most names have are tried.
_MOST_TRIED = 8
# Pieces are alike if they share this much of what they do.
_ALIKE = 0.8
# An iteration of another kind, as the prefill before a decode loop, is alike neither
# what is before it nor what is after it; of many iterations more may be so.
_OUTLIERS = 2
_SHARE_OF_OUTLIERS = 0.1
_FEWEST_WITH_OUTLIERS = 4
# A loop is at least this much of what the host does.
_SHORTEST_LOOP = 0.5
# Fewer iterations than this may be an accident.
_FEWEST_FIRM = 3
_FEWEST_EVENTS = 2
# As a prefill among them, which is alike neither what is before nor what is after it.
_SHARE_OF_ODD = 0.25
# In a window that cuts the first and the last, this many whole ones are a loop.
_FEWEST_WITHIN = 2
_WAIT = "wait"
# An iteration launches this many different graphs at most.
_MOST_GRAPHS = 256


@dataclass(frozen=True)
class Iterations:
    """The iterations of a loop."""

    windows: pl.DataFrame
    """``ts`` and ``end`` on the host, in order."""
    firm: bool
    """False if the iterations are only a guess."""


def find(raw: Frames, *, insist: bool = False) -> Iterations | None:
    """Return the iterations of the outermost loop, None if nothing repeats.

    Who insists gets those without a landmark too, which may be layers.
    """
    sequence = event_sequence(raw)
    grams = ngrams(sequence)
    counts = _hypotheses(grams, sequence)
    held = _held(
        [_try_count(sequence, grams, count) for count in counts], sequence, insist
    )
    if all(hypothesis.doubt for hypothesis in held):
        cut = [_tried_as_cut(sequence, grams, count) for count in counts]
        held += _held(
            [hypothesis for hypothesis in cut if hypothesis], sequence, insist
        )
    if not held:
        return None
    # Of those that are as sure, what the most names say comes first.
    best = min(held, key=lambda hypothesis: hypothesis.doubt)
    # Its iterations may be loops in turn, as where several texts are generated.
    inner = [
        hypothesis
        for hypothesis in held
        if len(hypothesis.anchor) >= 2 * len(best.anchor)
    ]
    best = inner[0] if inner else best
    windows = windows_of(sequence, grams, best.anchor)
    firm = len(best.shared) >= _FEWEST_FIRM and best.landmark not in {"", _WAIT}
    return Iterations(windows, firm) if windows.height > 1 else None


def _held(
    tried: list[_Tried],
    sequence: pl.DataFrame,
    insist: bool,  # noqa: FBT001 - find's
) -> list[_Tried]:
    """Return the hypotheses that hold."""
    alike = [hypothesis for hypothesis in tried if hypothesis.few_outliers]
    return [
        hypothesis for hypothesis in alike if _has_landmark(hypothesis, sequence)
    ] or (alike if insist else [])


def _has_landmark(one: _Tried, sequence: pl.DataFrame) -> bool:
    """Return whether a landmark shows that the pieces are iterations.

    Some models wait in each layer: that tells nothing unless all is the same over and
    over again, which one pass with its first and last layers is not.
    """
    if one.landmark != _WAIT:
        return bool(one.landmark)
    times = sequence.group_by("name").len()["len"]
    repeating = (times >= COMPLETE * len(one.shared)).sum() / len(times)
    return not one.doubt and repeating >= COMPLETE


@dataclass(frozen=True)
class _Tried:
    """A hypothesis, tried."""

    anchor: pl.Series
    """Positions of an event that each iteration has once."""
    landmark: str
    """The kind of event that marks iterations; empty if nothing does."""
    shared: pl.Series
    """Similarity of each iteration to the one before it, from 0 to 1: shared events by
    all events. The first one is compared with the last."""

    @property
    def few_outliers(self) -> bool:
        count = len(self.anchor)
        allowed = _OUTLIERS if count >= _FEWEST_WITH_OUTLIERS else 0
        outliers = (self.shared < _ALIKE).sum()
        return bool(outliers <= max(allowed, _SHARE_OF_OUTLIERS * count))

    @property
    def doubt(self) -> int:
        """0 where all are the same, 1 where all are alike, 2 where some are not."""
        return int((self.shared < SAME).any()) + int((self.shared < _ALIKE).any())


def _try_count(sequence: pl.DataFrame, grams: pl.DataFrame, count: int) -> _Tried:
    anchor = _most_even(grams.filter(pl.col("count") == count), sequence.height)
    pieces = sequence.with_columns(piece=piece_of(sequence["at"], anchor) % count)
    landmark = _landmark(pieces, count)
    return _Tried(anchor, landmark, similarity(pieces, (pl.col("piece") + 1) % count))


def _tried_as_cut(
    sequence: pl.DataFrame, grams: pl.DataFrame, count: int
) -> _Tried | None:
    """Try a hypothesis for a recording that begins and ends within an iteration.

    Only what is between two places is a whole one. What is before the first must be
    like the end of one, and what is behind the last like the beginning: a pass through
    layers has something else there.
    """
    anchor = _most_even(grams.filter(pl.col("count") == count))
    between = count - 1
    if between < _FEWEST_WITHIN or not _goes_on(sequence, anchor):
        return None
    pieces = sequence.with_columns(piece=piece_of(sequence["at"], anchor))
    inside = pieces.filter(pl.col("piece").is_between(0, between - 1))
    rest = pieces.filter(~pl.col("piece").is_between(0, between - 1))
    shared = similarity(inside, (pl.col("piece") + 1) % between)
    if (shared < _ALIKE).sum() > _SHARE_OF_ODD * between:
        return None
    return _Tried(anchor, _landmark(inside, between, rest), shared)


def _goes_on(sequence: pl.DataFrame, anchor: pl.Series) -> bool:
    """Return whether both ends of the recording are parts of an iteration."""
    first, second = int(anchor[0]), int(anchor[1])
    before, last = int(anchor[-2]), int(anchor[-1])
    behind = sequence.height - last
    # Of the next one there may be what is shorter than a gram.
    longest = (1 + LEFT_OVER) * max(anchor.diff().drop_nulls().to_list()) + LONGEST_GRAM
    return max(first, behind) <= longest and all(
        length <= _FEWEST_EVENTS
        or _alike(sequence.slice(start, length), sequence.slice(max(0, whole), length))
        for start, whole, length in (
            (0, second - first, first),
            (last, before, behind),
        )
    )


def _alike(table: pl.DataFrame, other: pl.DataFrame) -> bool:
    """Return whether two parts of the sequence are similar."""
    both = [
        part.with_columns(piece=pl.lit(at, pl.Int64))
        for at, part in enumerate((table, other))
    ]
    return bool((similarity(pl.concat(both), 1 - pl.col("piece")) >= _ALIKE).all())


def _hypotheses(grams: pl.DataFrame, sequence: pl.DataFrame) -> list[int]:
    """Return possible numbers of iterations, those that fit the most names first."""
    length = sequence.height
    reach = (pl.col("last") - pl.col("first")) * pl.col("count")
    return (
        grams.group_by("gram")
        .agg(pl.col("count").first(), first=pl.col("at").min(), last=pl.col("at").max())
        .filter(reach >= _SHORTEST_LOOP * (pl.col("count") - 1) * length)
        .group_by("count")
        .agg(names=pl.len())
        .filter(pl.col("count") * _FEWEST_EVENTS <= length)
        .sort("names", "count", descending=True)
        .head(_MOST_TRIED)["count"]
        .to_list()
    )


def _most_even(places: pl.DataFrame, length: int = 0) -> pl.Series:
    """Return the places of the gram that is there at the most even distances.

    Where there are few, so is what is behind the last and before the first of them, if
    the length of all is given.
    """
    few = (pl.col("at").len() < _FEWEST_WITH_OUTLIERS) & pl.lit(length > 0)
    around = pl.when(few).then(pl.col("at").first() + length - pl.col("at").last())
    steps = (
        places.sort("gram", "at")
        .group_by("gram", maintain_order=True)
        .agg(pl.col("at").first().alias("first"), pl.col("at").diff().append(around))
    )
    noise = steps.with_columns(noise=pl.col("at").list.drop_nulls().list.std())
    best = noise.sort("noise", "first")["gram"].first()
    return places.filter(pl.col("gram") == best)["at"].sort()


def _landmark(
    pieces: pl.DataFrame, count: int, rest: pl.DataFrame | None = None
) -> str:
    """Return the landmark that the pieces have, empty if they are no iterations.

    ``rest`` is what is in none of them. Unless there is any, what is before the first
    place is of the last piece: together they are a whole one.
    """
    present = pieces.group_by("piece").agg(pl.col(*LANDMARKS).any())
    outliers = max(_SHARE_OF_OUTLIERS * count, int(count >= _FEWEST_WITH_OUTLIERS))
    having = {name: int(present[name].sum()) for name in LANDMARKS}
    in_all = [name for name, pieces in having.items() if count - pieces <= outliers]
    # A step without its optimizer or its backward is a part of a step, and a pass
    # without its embedding a layer, unless a replayed graph hides it.
    there = {
        name
        for name in having
        if having[name] or (rest is not None and rest[name].any())
    }
    missing = there - {*in_all}
    hidden = {"embedding"} if "graph" in in_all else set()
    if missing & {"optimizer", "backward", "embedding"} - hidden:
        return ""
    return in_all[0] if in_all else ""


def graph_launches(raw: Frames) -> pl.DataFrame | None:
    """Return windows from one launch of the same CUDA graphs to the next, if any."""
    calls = raw["runtime"].filter(text("name").str.contains(LANDMARKS["graph"]))
    launched = (
        calls.sort("ts")
        .join(
            raw["kernels"].group_by("correlation").agg(kernels=pl.len()),
            on="correlation",
            how="left",
            maintain_order="left",
        )
        .with_columns(end=END)
    )
    inside = launched["kernels"].sum()
    if inside < _SHORTEST_LOOP * raw["kernels"].height:
        return None
    sizes = launched["kernels"]
    for turn in range(1, min(len(sizes) // 2, _MOST_GRAPHS) + 1):
        if (sizes.shift(turn) == sizes).all():
            return launched.gather_every(turn).select(
                "ts", end=pl.col("ts").shift(-1, fill_value=launched["end"].max())
            )
    return None
