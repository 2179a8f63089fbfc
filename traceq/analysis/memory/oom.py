"""Allocations that failed: what was asked for, what was free, who holds the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.memory.fragmentation import DEFAULT_POOL, blocks_at, free_pieces
from traceq.analysis.memory.stacks import SOURCE
from traceq.model.schema import ID, NS, NUMBER, TEXT, Column, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.model.snapshot import Snapshot

FAILURES = Table(
    "Allocations that failed.",
    {
        "event": Column(ID, "The event.", "events.id"),
        "device": Column(NUMBER, "The GPU's ordinal."),
        "ts": Column(NS, "When, as in events.", "ns"),
        "stream": Column(NUMBER, "The stream that it was for, if that is known."),
        "asked": Column(NUMBER, "What was asked for.", "bytes"),
        "device_free": Column(NUMBER, "Free on the device, for anybody.", "bytes"),
        "allocated": Column(NUMBER, "Held by tensors.", "bytes"),
        "reserved": Column(NUMBER, "Reserved from the device.", "bytes"),
        **SOURCE,
    },
)

HOLDERS = Table(
    "Who held memory at one moment, by line.",
    {
        "file": SOURCE["file"],
        "line": SOURCE["line"],
        "function": SOURCE["function"],
        "category": Column(TEXT, "What most of it is for."),
        "held": Column(NUMBER, "What it held.", "bytes"),
        "count": Column(NUMBER, "In how many allocations."),
        "beside": Column(NUMBER, "Free in segments that it holds a part of.", "bytes"),
    },
)

_NEEDED = ("weights", "gradients", "optimizer state")


def failures(
    snapshot: Snapshot, curve: pl.DataFrame, sources: pl.DataFrame
) -> pl.DataFrame:
    """Return the allocations that failed; ``FAILURES`` has the columns."""
    found = snapshot.events.filter(pl.col("action") == "oom")
    totals = curve.select("event", "allocated", "reserved")
    return FAILURES.shaped(
        found.rename({"id": "event", "size": "asked"})
        .join(totals, on="event", how="left", maintain_order="left")
        .join(sources, on="stack", how="left", maintain_order="left")
    )


@dataclass(frozen=True)
class Room:
    """What room there was for an allocation that failed."""

    free: int
    """Reserved and free for its stream, outside of pools of CUDA graphs."""
    pieces: int
    """In how many pieces that was."""
    largest: int
    elsewhere: int
    """Reserved and free for other streams, of no use to it."""
    cause: str
    """``fragmented``, ``limited`` or ``full``."""
    after: int
    """How many allocations follow: whether the program goes on."""


def room(
    snapshot: Snapshot, allocations: pl.DataFrame, failure: Mapping[str, Any]
) -> Room:
    """Return what room there was for one of the ``failures``, and why it failed."""
    asked, stream = failure["asked"], failure["stream"]
    here = pl.col("device") == failure["device"]
    pool = pl.col("pool").cast(pl.String).fill_null(DEFAULT_POOL)
    every = free_pieces(snapshot, allocations, failure["event"]).filter(
        here, pool == DEFAULT_POOL
    )
    mine = every if stream is None else every.filter(pl.col("stream") == stream)
    sizes = mine["size"].to_list()
    later = snapshot.events.filter(
        here, pl.col("action") == "alloc", pl.col("id") > failure["event"]
    )
    cause = "full"
    if sum(sizes) >= asked:
        cause = "fragmented"
    elif (failure["device_free"] or 0) >= asked:
        cause = "limited"
    return Room(
        free=sum(sizes),
        pieces=len(sizes),
        largest=max(sizes, default=0),
        elsewhere=sum(every["size"].to_list()) - sum(sizes),
        cause=cause,
        after=later.height,
    )


def holders(
    snapshot: Snapshot, allocations: pl.DataFrame, device: int, event: int | None
) -> pl.DataFrame:
    """Return who held memory right after an event; ``HOLDERS`` has the columns.

    Those that would free the most come first: what they hold, and what lies free
    beside it and can go with it. What a model cannot do without comes last.
    """
    here, place = pl.col("device") == device, ["file", "line", "function"]
    pieces = free_pieces(snapshot, allocations, event).filter(here)
    free = pieces.group_by("segment").agg(beside=pl.sum("size"))
    live = blocks_at(snapshot, allocations, event).filter(here)
    beside = (
        live.select(*place, "segment")
        .unique()
        .join(free, on="segment")
        .group_by(place)
        .agg(pl.sum("beside"))
    )
    by_category = live.group_by(*place, "category").agg(
        held=pl.sum("size"), count=pl.len()
    )
    found = (
        by_category.sort("held", descending=True)
        .group_by(place)
        .agg(pl.col("category").first(), pl.sum("held"), pl.sum("count"))
        .join(beside, on=place, how="left", nulls_equal=True)
        .with_columns(pl.col("beside").fill_null(0))
    )
    needed = pl.col("category").cast(pl.String).is_in(_NEEDED)
    order = [needed, -(pl.col("held") + pl.col("beside")), *map(pl.col, place)]
    return HOLDERS.shaped(found.sort(order))
