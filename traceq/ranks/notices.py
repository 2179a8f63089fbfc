"""Notices on a job: what is missing, differs between ranks, or could not be matched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import STRAGGLER
from traceq.common.units import time
from traceq.ranks.columns import highest, lowest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from traceq.ranks.digest import Digest
    from traceq.ranks.matching import Matched, Split

_LISTED = 8


@dataclass(frozen=True)
class Unread:
    """A file that gave no digest, and why."""

    path: str
    reason: str


def on_ranks(
    digests: Sequence[Digest],
    others: Sequence[Sequence[Digest]],
    unread: Sequence[Unread],
    ranks: pl.DataFrame,
) -> Iterable[str]:
    """Yield sentences on what is missing, or differs between the ranks."""
    for item in unread:
        yield f"{item.path} could not be read and is left out: {item.reason}"
    for other in others:
        first = other[0].rank
        yield (
            f"{len(other)} of the traces are of another job or another recording"
            f" (world size {first['world_size']}, as {first['path']}) and are left out"
        )
    world = digests[0].rank["world_size"]
    numbers = set(ranks["number"].to_list())
    if world and (absent := sorted(set(range(world)) - numbers)):
        yield (
            f"{len(absent)} of {world} ranks are not here ({_listed(absent)}): time"
            " spent waiting for them counts as transfer"
        )
    cut = ranks.filter(pl.col("kept") < pl.col("collectives"))
    if cut.height:
        yield (
            f"of rank {_listed(cut['number'].to_list())} only the first collectives are"
            f" looked at ({lowest(cut['kept'])} and more)"
        )
    lengths = ranks["steps"]
    if lowest(lengths) < highest(lengths):
        yield (
            f"the ranks recorded between {lowest(lengths)} and {highest(lengths)}"
            " steps; what they have in common is compared"
        )
    damaged = [digest.rank["rank"] for digest in digests if digest.rank["damage"]]
    if damaged:
        yield f"the traces of rank {_listed(damaged)} are incomplete"


def on_matches(
    matches: Matched, misfits: int, instances: int, ranks: pl.DataFrame
) -> Iterable[str]:
    """Yield sentences on collectives that could not be matched."""
    for split in matches.splits:
        yield _split_in_words(split, ranks)
    if misfits:
        yield (
            f"{misfits} collectives are left out: a rank was done with them before"
            " another one came, so they are not the same, or the clocks jumped"
        )
    if not instances:
        yield "no collective was recorded by two ranks, so nothing can be compared"
    if ranks["start_ns"].null_count():
        yield "some traces do not state their time, and were aligned by order alone"


def _split_in_words(split: Split, ranks: pl.DataFrame) -> str:
    """Return which ranks of a lane meet, and which could not be aligned with them."""
    sets = [sorted(ranks["number"].gather(list(item)).to_list()) for item in split.sets]
    alone = sorted(item[0] for item in sets if len(item) == 1)
    groups = [item for item in sets if len(item) > 1]
    unknown = "the windows may have no collective in common, or nothing tells which"
    if len(groups) <= 1:
        return (
            f"rank {_listed(alone)} could not be aligned with others in {split.lane}:"
            f" {unknown}"
        )
    named = "; ".join(_listed(group) for group in groups)
    rest = f", and rank {_listed(alone)} with none" if alone else ""
    return (
        f"the ranks fall into {len(groups)} sets in {split.lane} that could be aligned"
        f" each, but not with each other ({named}){rest}: {unknown}"
    )


def on_unknown_ranks(meetings: pl.DataFrame, ranks: pl.DataFrame) -> Iterable[str]:
    """Yield sentences on ranks that unknown ranks held up for long."""
    held = (
        meetings.group_by("rank")
        .agg(
            pl.col("elsewhere").sum(),
            window=(pl.col("at").max() - pl.col("at").min()),
        )
        .filter(pl.col("elsewhere") > STRAGGLER * pl.col("window"))
        .sort("rank")
    )
    if held.height:
        numbers = sorted(ranks["number"].gather(held["rank"]).to_list())
        longest = time(highest(held["elsewhere"]))
        yield (
            f"rank {_listed(numbers)} waited for up to {longest} in collectives"
            " whose other ranks were not recorded, or could not be matched: who is"
            " late there is not known"
        )


def _listed(numbers: Sequence[int]) -> str:
    first = ", ".join(map(str, numbers[:_LISTED]))
    more = len(numbers) - _LISTED
    return f"{first} and {more} more" if more > 0 else first
