"""Out-of-memory errors: failed allocations, the free memory, and its other holders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.base.callers import PLACE
from traceq.analysis.memory.fragmentation import holders, shared_free_blocks
from traceq.analysis.memory.stacks import SOURCE
from traceq.common.expressions import text
from traceq.model.schema import ID, NS, NUMBER, Column, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.analysis.memory.history import History

FAILURES = Table(
    "Allocations that failed.",
    {
        "event": Column(ID, "The event.", "events.id"),
        "device": Column(NUMBER, "The GPU's ordinal."),
        "ts": Column(NS, "When, as in events.", "ns"),
        "stream": Column(NUMBER, "The stream that it was for, if recorded."),
        "asked": Column(NUMBER, "What was asked for.", "bytes"),
        "device_free": Column(NUMBER, "Free on the device, for any process.", "bytes"),
        "allocated": Column(NUMBER, "Held by tensors.", "bytes"),
        "reserved": Column(NUMBER, "Reserved from the device.", "bytes"),
        **SOURCE,
    },
)

# Expandable segments map and unmap memory for large tensors in pages of this size.
_PAGE = 20 << 20
_NEEDED = ("weights", "gradients", "optimizer state")


def failures(history: History) -> pl.DataFrame:
    """Return the allocations that failed; ``FAILURES`` has the columns."""
    failed = history.snapshot.events.filter(pl.col("action") == "oom")
    totals = history.curve.select("event", "allocated", "reserved")
    return FAILURES.shaped(
        failed.rename({"id": "event", "size": "asked"})
        .join(totals, on="event", how="left", maintain_order="left")
        .join(history.sources, on="stack", how="left", maintain_order="left")
    )


def is_limited(failure: Mapping[str, Any]) -> bool:
    """Return whether the device had room for one of the ``failures``."""
    return bool((failure["device_free"] or 0) >= failure["asked"])


@dataclass(frozen=True)
class Room:
    """Free memory for an allocation that failed."""

    free: int
    """Reserved memory that is free for its stream, outside of private pools."""
    free_blocks: int
    """Number of free blocks that this is in."""
    largest: int
    """The largest of them."""
    whole_pages: int
    """Bytes that expandable segments could release: whole pages within a block."""
    other_streams: int
    """Reserved memory that is free for other streams, which it cannot use."""
    cause: str
    """``fragmented``, ``limited`` or ``full``."""
    allocations_after: int
    """Number of later allocations: above 0, the program went on."""


def room(history: History, failure: Mapping[str, Any]) -> Room:
    """Return the free memory for one of the ``failures``, and the cause."""
    requested, stream = failure["asked"], failure["stream"]
    every = shared_free_blocks(history, failure["device"], failure["event"])
    usable = every if stream is None else every.filter(pl.col("stream") == stream)
    free = int(usable["size"].sum())
    later = history.snapshot.events.filter(
        pl.col("device") == failure["device"],
        pl.col("action") == "alloc",
        pl.col("id") > failure["event"],
    )
    cause = "full"
    if free >= requested:
        cause = "fragmented"
    elif is_limited(failure):
        cause = "limited"
    return Room(
        free=free,
        free_blocks=usable.height,
        largest=max(usable["size"], default=0),
        whole_pages=_whole_pages(usable["size"]),
        other_streams=int(every["size"].sum()) - free,
        cause=cause,
        allocations_after=later.height,
    )


def _whole_pages(sizes: pl.Series) -> int:
    """Return what lies in whole pages of free blocks; a block may begin within one."""
    pages = (sizes // _PAGE - 1).clip(lower_bound=0)
    return int(pages.sum()) * _PAGE


def droppable(history: History, device: int, event: int | None) -> pl.DataFrame:
    """Return the ``holders`` of a device, those that free the most first.

    That is what they hold, and what is free in their segments and can go with it. What
    a model cannot do without comes last.
    """
    needed = text("category").is_in(_NEEDED)
    frees = pl.col("held") + pl.col("fragmented")
    return holders(history, device, event).sort(needed, -frees, *PLACE)
