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
from traceq.model.names import LANDMARKS, TORCH_REGION

if TYPE_CHECKING:
    from traceq.graph.host import Frames

# Of all counts, those that the most names have are tried.
_MOST_TRIED = 8
# Pieces are the same, or alike, if they share this much of what they do.
_SAME = 0.9
_ALIKE = 0.8
# An iteration of another kind, as the prefill before a decode loop, is alike neither
# what is before it nor what is after it; of many iterations more may be so.
_OUTLIERS = 2
_SHARE_OF_OUTLIERS = 0.1
_FEWEST_WITH_OUTLIERS = 4
# A loop is at least this much of what the host does.
_SHORTEST_LOOP = 0.5
# A piece is a whole iteration if it has this much of what all iterations have.
_WHOLE = 0.9
# This share of an iteration may be left over before the first one and behind the last.
_LITTLE = 0.15
# Fewer iterations than this may be an accident.
_FEWEST_FIRM = 3
_FEWEST_EVENTS = 2
_LONGEST_GRAM = 4
# As a prefill among them, which is alike neither what is before nor what is after it.
_SHARE_OF_ODD = 0.25
# In a window that cuts the first and the last, this many whole ones are a loop.
_FEWEST_WITHIN = 2
_WAIT = "wait"
_STOP = "^(cuda|hip)DeviceSynchronize$"
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
    sequence = _sequence(raw)
    grams = _grams(sequence)
    counts = _hypotheses(grams, sequence)
    held = _held([_tried(sequence, grams, one) for one in counts], sequence, insist)
    if all(one.doubt for one in held):
        cut = [_tried_as_cut(sequence, grams, one) for one in counts]
        held += _held([one for one in cut if one], sequence, insist)
    if not held:
        return None
    # Of those that are as sure, what the most names say comes first.
    best = min(held, key=lambda one: one.doubt)
    # Its iterations may be loops in turn, as where several texts are generated.
    inner = [one for one in held if len(one.anchor) >= 2 * len(best.anchor)]
    best = inner[0] if inner else best
    windows = _windows(sequence, grams, best.anchor)
    firm = len(best.shared) >= _FEWEST_FIRM and best.landmark not in {"", _WAIT}
    return Iterations(windows, firm) if windows.height > 1 else None


def _held(
    tried: list[_Tried],
    sequence: pl.DataFrame,
    insist: bool,  # noqa: FBT001 - find's
) -> list[_Tried]:
    """Return the hypotheses that hold."""
    alike = [one for one in tried if one.few_outliers]
    return [one for one in alike if _told(one, sequence)] or (alike if insist else [])


def _told(one: _Tried, sequence: pl.DataFrame) -> bool:
    """Return whether a landmark shows that the pieces are iterations.

    Some models wait in each layer: that tells nothing unless all is the same over and
    over again, which one pass with its first and last layers is not.
    """
    if one.landmark != _WAIT:
        return bool(one.landmark)
    times = sequence.group_by("name").len()["len"]
    repeating = (times >= _WHOLE * len(one.shared)).sum() / len(times)
    return not one.doubt and repeating >= _WHOLE


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
        return int((self.shared < _SAME).any()) + int((self.shared < _ALIKE).any())


def _tried(sequence: pl.DataFrame, grams: pl.DataFrame, count: int) -> _Tried:
    anchor = _most_even(grams.filter(pl.col("count") == count), sequence.height)
    pieces = sequence.with_columns(piece=_piece(sequence["at"], anchor) % count)
    landmark = _landmark(pieces, count)
    return _Tried(anchor, landmark, _shared(pieces, (pl.col("piece") + 1) % count))


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
    pieces = sequence.with_columns(piece=_piece(sequence["at"], anchor))
    inside = pieces.filter(pl.col("piece").is_between(0, between - 1))
    rest = pieces.filter(~pl.col("piece").is_between(0, between - 1))
    shared = _shared(inside, (pl.col("piece") + 1) % between)
    if (shared < _ALIKE).sum() > _SHARE_OF_ODD * between:
        return None
    return _Tried(anchor, _landmark(inside, between, rest), shared)


def _goes_on(sequence: pl.DataFrame, anchor: pl.Series) -> bool:
    """Return whether both ends of the recording are parts of an iteration."""
    first, second = int(anchor[0]), int(anchor[1])
    before, last = int(anchor[-2]), int(anchor[-1])
    behind = sequence.height - last
    # Of the next one there may be what is shorter than a gram.
    longest = (1 + _LITTLE) * max(anchor.diff().drop_nulls().to_list()) + _LONGEST_GRAM
    return max(first, behind) <= longest and all(
        length <= _FEWEST_EVENTS
        or _alike(sequence.slice(start, length), sequence.slice(max(0, whole), length))
        for start, whole, length in (
            (0, second - first, first),
            (last, before, behind),
        )
    )


def _alike(one: pl.DataFrame, other: pl.DataFrame) -> bool:
    """Return whether two parts of the sequence are similar."""
    both = [
        part.with_columns(piece=pl.lit(at, pl.Int64))
        for at, part in enumerate((one, other))
    ]
    return bool((_shared(pl.concat(both), 1 - pl.col("piece")) >= _ALIKE).all())


def _sequence(raw: Frames) -> pl.DataFrame:
    """Return the outermost events of the working threads, by start.

    Its columns: ``at``, the row; ``name``, as a number; ``ts``, ``end``; ``gap``, the
    time before it in which the host did nothing; and one for each landmark, whether
    it, or something inside of it, is one.
    """
    host = _host(raw) if raw["ops"].height + raw["runtime"].height else None
    host = _on_busiest_stream(raw["kernels"]) if host is None else host
    # Threads that only load data run ops too, and beside the loop.
    works = pl.col("call").any().over("thread") | ~pl.col("call").any()
    return (
        host.lazy()
        .filter(works)
        .sort("thread", "ts", -pl.col("end"))
        .with_columns(of=_outer().cum_sum())
        .join(_described(host["name"]), on="name", how="left", maintain_order="left")
        .group_by("of", maintain_order=True)
        .agg(
            pl.col("number", "thread", "ts", "end").first(),
            *(pl.col(landmark).any() for landmark in LANDMARKS),
        )
        .sort("ts", "thread")
        .select(
            pl.int_range(pl.len(), dtype=pl.Int64).alias("at"),
            pl.col("number").alias("name"),
            "ts",
            "end",
            (pl.col("ts") - pl.col("end").cum_max().shift(1)).alias("gap"),
            *LANDMARKS,
        )
        .collect()
    )


def _host(raw: Frames) -> pl.DataFrame:
    """Return ops, runtime calls, and the regions that torch itself opens."""
    regions = raw["annotations"].filter(
        ~pl.col("on_gpu") & text("name").str.contains(TORCH_REGION)
    )
    tables = {"regions": regions, "ops": raw["ops"], "runtime": raw["runtime"]}
    host = pl.concat(
        table.select("name", "thread", "ts", end=END, call=pl.lit(name == "runtime"))
        for name, table in tables.items()
    )
    # With a last one the profiler itself waits for the GPU, when it is stopped.
    stop = (pl.col("ts") == pl.col("ts").max()) & text("name").str.contains(_STOP)
    return host.filter(~stop)


def _on_busiest_stream(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the GPU's work in place of the host's, where that was not recorded."""
    busiest = kernels.group_by("thread").agg(pl.col("dur").sum()).sort("dur", "thread")
    work = kernels.join(busiest.select("thread").tail(1), on="thread", how="semi")
    return work.select("name", "thread", "ts", end=END, call=pl.lit(value=False))


def _outer() -> pl.Expr:
    """Return a filter of rows, by thread and start, that are inside of no other."""
    before = pl.col("end").cum_max().shift(1).over("thread")
    return (pl.col("ts") >= before).fill_null(value=True)


def _described(names: pl.Series) -> pl.LazyFrame:
    """Return a number for each name, and which landmarks it is."""
    distinct = names.unique(maintain_order=True).to_frame("name")
    return distinct.lazy().with_columns(
        pl.int_range(pl.len(), dtype=pl.UInt64).alias("number"),
        *(
            text("name").str.contains(pattern).alias(landmark)
            for landmark, pattern in LANDMARKS.items()
        ),
    )


def _grams(sequence: pl.DataFrame) -> pl.DataFrame:
    """Return each place of each name, and of two and four names in a row.

    Where a loop does everything several times an iteration, a few names in a row are
    there once. Columns: ``gram``, a number; ``at``; ``count``, how often it is there.
    """
    names = sequence.select("at", gram="name")
    pairs = _joined(names, 1)
    fours = _joined(pairs, 2)
    kinds = (names, pairs, fours)
    return (
        pl.concat(
            table.with_columns(pl.col("gram") * len(kinds) + kind)
            for kind, table in enumerate(kinds)
        )
        .with_columns(count=pl.len().over("gram").cast(pl.Int64))
        .filter(pl.col("count") > 1)
    )


def _joined(grams: pl.DataFrame, by: int) -> pl.DataFrame:
    """Return grams of twice the length, each at the place where it begins."""
    both = pl.col("gram") * (pl.col("gram").max() + 1) + pl.col("gram").shift(-by)
    # As small numbers again, so that twice the length still has a number of its own.
    return (
        grams.with_columns(gram=both)
        .drop_nulls()
        .with_columns(pl.col("gram").rank("dense").cast(pl.UInt64))
    )


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


def _piece(at: pl.Series, borders: pl.Series) -> pl.Series:
    """Return the number of the piece that a place is in; -1 before the first border."""
    return borders.search_sorted(at, side="right").cast(pl.Int64) - 1


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


def _shared(pieces: pl.DataFrame, other: pl.Expr) -> pl.Series:
    """Return the similarity of each piece to another one, by number."""
    counts = pieces.group_by("piece", "name").agg(times=pl.len().cast(pl.Int64))
    theirs = counts.with_columns(piece=other)
    both = counts.join(theirs, on=("piece", "name"), how="full", coalesce=True)
    return (
        both.with_columns(pl.col("times", "times_right").fill_null(0))
        .group_by("piece")
        .agg(
            pl.min_horizontal("times", "times_right").sum()
            / pl.max_horizontal("times", "times_right").sum()
        )
        .sort("piece")
        .to_series(1)
    )


def _windows(
    sequence: pl.DataFrame, grams: pl.DataFrame, anchor: pl.Series
) -> pl.DataFrame:
    """Return the start and end of each iteration, without those that are cut.

    What the host does before the first event of an iteration, as loading data, is of
    it. Before the first one of all that is as long as before most others, at most.
    """
    regular = _regular(grams, anchor)
    borders = _borders(sequence, regular)
    pieces = sequence.with_columns(piece=_piece(sequence["at"], borders))
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


def _with_rests(piece: pl.Series, whole: list[int]) -> pl.Series:
    """Give what little is before the first whole piece, or behind the last, to it."""
    sizes = dict(piece.value_counts().iter_rows())
    little = _LITTLE * sizes[whole[len(whole) // 2]]
    first, last = min(whole), max(whole)
    if sizes.get(first - 1, 0) <= little:
        piece = piece.clip(lower_bound=first)
    if sizes.get(last + 1, 0) <= little:
        piece = piece.clip(upper_bound=last)
    return piece


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
        regular.with_columns(piece=_piece(regular["at"], borders))
        .group_by("piece")
        .agg(share=share)
        .join(pieces.group_by("piece").len(), on="piece")
        .filter(
            pl.col("share") >= _WHOLE,
            pl.col("len") > (1 - _LITTLE) * pl.col("len").median(),
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
        (_shared(two, one + other - pl.col("piece")) >= _SAME).all()
    )


def _regular(grams: pl.DataFrame, anchor: pl.Series) -> pl.DataFrame:
    """Return the places of the grams that are there once in each piece."""
    count = len(anchor)
    places = grams.filter(pl.col("count") == count)
    rows = places.with_columns(piece=_piece(places["at"], anchor) % count)
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
    long = 1 - _LITTLE
    first = pl.when((share >= _WHOLE) & (before > long)).then(0)
    last = pl.when((share <= 1 - _WHOLE) & (behind > long)).then(0)
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
        .with_columns(left=pl.when(left <= _LITTLE).then(left).otherwise(1))
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
    if abs(last - length) > _LITTLE * length:
        return borders
    inside = sequence.select(
        "name", into=pl.col("at") - moved.gather(_piece(sequence["at"], moved))
    ).filter(pl.col("into") < ahead)
    same = (inside["name"] == sequence["name"].gather(inside["into"])).sum()
    return moved if same >= _SAME * inside.height else borders


def _from_whole(length: pl.Expr) -> pl.Expr:
    """Return the distance of a length, in iterations, from 0 or 1."""
    return pl.min_horizontal(length, (length - 1).abs())


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
