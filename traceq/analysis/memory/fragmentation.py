"""Fragmentation: reserved memory that is free, and the allocations in its segments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.base.callers import PLACE
from traceq.analysis.memory.curve import RELEASING, RESERVING
from traceq.analysis.memory.lifetimes import live_at
from traceq.analysis.memory.stacks import SOURCE
from traceq.common.expressions import asof, known, text
from traceq.model.schema import ID, NUMBER, TEXT, Column, Table
from traceq.model.snapshot import DEFAULT_POOL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.analysis.memory.history import History
    from traceq.model.snapshot import Snapshot

RESERVED = Table(
    "What was reserved from the device at one moment.",
    {
        "device": Column(NUMBER, "The GPU's ordinal."),
        "address": Column(NUMBER, "Where the segment begins."),
        "size": Column(NUMBER, "Its size.", "bytes"),
        "stream": Column(NUMBER, "The stream whose tensors it is for."),
        "pool": Column(TEXT, "Memory pool; none if it is not recorded any more."),
    },
)

FREE_BLOCKS = Table(
    "Free blocks of segments at one moment.",
    {
        "device": Column(NUMBER, "The GPU's ordinal."),
        "segment": Column(NUMBER, "Where its segment begins."),
        "address": Column(NUMBER, "Where it begins."),
        "size": Column(NUMBER, "Its size.", "bytes"),
        "held": Column(
            NUMBER,
            "What tensors hold of its segment; 0 if the segment can be released.",
            "bytes",
        ),
        "stream": Column(NUMBER, "The stream whose tensors it is for."),
        "pool": Column(TEXT, "Memory pool."),
    },
)

HOLDERS = Table(
    "Who held memory at one moment, by line.",
    {
        "file": SOURCE["file"],
        "line": SOURCE["line"],
        "function": SOURCE["function"],
        "category": Column(TEXT, "What it is for."),
        "held": Column(NUMBER, "What it held.", "bytes"),
        "count": Column(NUMBER, "In how many allocations."),
        "fragmented": Column(
            NUMBER, "Free in segments that it holds a part of.", "bytes"
        ),
    },
)

CHURN = Table(
    "What a step allocated from the driver, and what it freed there.",
    {
        "device": Column(NUMBER, "The GPU's ordinal."),
        "step": Column(NUMBER, "The step."),
        "allocated": Column(NUMBER, "Allocated, in segments.", "bytes"),
        "freed": Column(NUMBER, "Freed, in segments.", "bytes"),
        "allocs": Column(NUMBER, "How often it allocated."),
        "frees": Column(NUMBER, "How often it freed."),
        "alloc_stack": Column(ID, "Where most often, if recorded.", "stacks.id"),
        "free_stack": Column(ID, "Where most often, if recorded.", "stacks.id"),
    },
)

_ALLOCATED, _FREED = RESERVING, RELEASING
_GRAPHS = r"(^|/)torch/cuda/graphs\.py$|/cudagraph_trees\.py$"
_EMPTIES = r"^empty_cache$|::emptyCache\(|^THCPModule_emptyCache"
# The allocator cuts blocks at multiples of this.
_ROUND = 512


@dataclass(frozen=True)
class Fragmentation:
    """Reserved but unusable memory at the peak, in bytes."""

    rounding: int
    """Padding inside of blocks, which are larger than the allocation requested."""
    fragmented: int
    """Free, but in segments with live tensors."""
    releasable: int
    """Free in segments without any: torch.cuda.empty_cache() releases them."""
    largest: int
    """The largest free block: no larger allocation fits without a new segment."""
    free_blocks: int
    pending: int
    """Memory that the program freed while a stream may still use it."""
    private: int
    """Free in private pools, as of CUDA graphs, which others cannot use."""
    holders: pl.DataFrame
    """Allocations in the fragmented segments, those with the most free memory first;
    ``HOLDERS`` has the columns."""


def reserved_at(snapshot: Snapshot, event: int | None) -> pl.DataFrame:
    """Return the segments right after an event; ``RESERVED`` has the columns.

    What was reserved at the end, without what was allocated from the driver since, and
    with what was freed since. Segments that grow in place are cut where they did.
    """
    since = snapshot.events.filter(
        pl.col("action").is_in(_ALLOCATED + _FREED),
        pl.col("id") > (-1 if event is None else event),
    )
    parts = pl.concat(
        [
            snapshot.segments.select(*RESERVED.columns, there=pl.lit(1)),
            since.select(
                *RESERVED.columns,
                there=pl.when(pl.col("action").is_in(_ALLOCATED)).then(-1).otherwise(1),
            ),
        ]
    )
    if since.is_empty():
        return RESERVED.shaped(parts.sort("device", "address"))
    edges = pl.concat(
        [
            parts.with_columns(ends=pl.lit(value=False)),
            parts.with_columns(
                -pl.col("there"),
                address=pl.col("address") + pl.col("size"),
                ends=pl.lit(value=True),
            ),
        ]
    )
    cuts = (
        edges.group_by("device", "address")
        .agg(
            pl.col("there").sum(),
            pl.col("stream", "pool").filter(~pl.col("ends")).drop_nulls().first(),
            begins=~pl.col("ends").all(),
        )
        .sort("device", "address")
        .with_columns(
            pl.col("there").cum_sum().over("device"),
            # A part that continues behind the end of another is of the same segment.
            pl.when("begins")
            .then(pl.col("stream", "pool"))
            .otherwise(pl.col("stream", "pool").forward_fill().over("device")),
            size=pl.col("address").shift(-1).over("device") - pl.col("address"),
        )
    )
    return RESERVED.shaped(cuts.filter(pl.col("there") > 0))


def blocks_at(
    snapshot: Snapshot, lives: pl.DataFrame, event: int | None
) -> pl.DataFrame:
    """Return the live blocks right after an event, with ``segment`` and ``block``.

    ``block`` is what it takes, rounded up; ``lives`` has at least the columns of
    ``memory_lifetimes``.
    """
    rounded = (pl.col("size") + _ROUND - 1) // _ROUND * _ROUND
    at_end = snapshot.blocks.select("device", "address", block_at_end="size")
    live = live_at(lives, event).join(at_end, on=["device", "address"], how="left")
    # Block sizes are recorded only for blocks that are there at the end.
    block = pl.when(pl.col("free").is_null()).then("block_at_end")
    return asof(
        live.with_columns(block=pl.coalesce(block, rounded)).drop("block_at_end"),
        reserved_at(snapshot, event).select("device", segment="address"),
        "address",
        "segment",
        by="device",
    )


def free_blocks(
    snapshot: Snapshot, lives: pl.DataFrame, event: int | None
) -> pl.DataFrame:
    """Return the free blocks right after an event; ``FREE_BLOCKS`` has the columns."""
    segment = ["device", "segment"]
    held = blocks_at(snapshot, lives, event).select(*segment, "address", "block")
    segments = (
        reserved_at(snapshot, event)
        .rename({"address": "segment"})
        .join(held.group_by(segment).agg(held=pl.sum("block")), on=segment, how="left")
        .with_columns(pl.col("held").fill_null(0))
    )
    begins = segments.select(*segment, address="segment", block=pl.lit(0, NUMBER))
    # CUDA graphs use blocks of their pools again without an event: these may overlap.
    ends = (pl.col("address") + pl.col("block")).cum_max().over(segment)
    next_begins = pl.coalesce(
        pl.col("address").shift(-1).over(segment), pl.col("segment") + pl.col("size")
    )
    return FREE_BLOCKS.shaped(
        pl.concat([held, begins])
        .sort(*segment, "address", "block")
        .join(segments, on=segment, maintain_order="left")
        .with_columns(address=ends, size=next_begins - ends)
        .filter(pl.col("size") > 0)
    )


def shared_free_blocks(
    history: History, device: int, event: int | None
) -> pl.DataFrame:
    """Return the free blocks that any allocation of a device could use after an event.

    Private pools, as of CUDA graphs, are left out.
    """
    blocks = free_blocks(*_here(history, device, event), event)
    return blocks.filter(~_private())


def _here(
    history: History, device: int, event: int | None
) -> tuple[Snapshot, pl.DataFrame]:
    """Return the part of the snapshot that says what was where on one device.

    The whole of it, filtered again and again, would take most of the time.
    """
    here = pl.col("device") == device
    snapshot = replace(
        history.snapshot,
        events=history.driver_events.filter(here),
        segments=history.snapshot.segments.filter(here),
        blocks=history.snapshot.blocks.filter(here),
    )
    return snapshot, history.live(device, event)


def _private() -> pl.Expr:
    return known(text("pool") != DEFAULT_POOL)


def holders(history: History, device: int, event: int | None) -> pl.DataFrame:
    """Return the holders of memory right after an event; ``HOLDERS`` has the columns.

    The most held comes first. What is free in a segment counts for everyone who holds
    a part of it.
    """
    snapshot, lives = _here(history, device, event)
    free = free_blocks(snapshot, lives, event).filter(~_private())
    return _holders(blocks_at(snapshot, lives, event), free)


def _holders(live: pl.DataFrame, free: pl.DataFrame) -> pl.DataFrame:
    key = [*PLACE, "category"]
    fragmented = (
        live.select(*key, "segment")
        .unique()
        .join(free.group_by("segment").agg(fragmented=pl.sum("size")), on="segment")
        .group_by(key)
        .agg(pl.sum("fragmented"))
    )
    return HOLDERS.shaped(
        live.group_by(key)
        .agg(held=pl.sum("size"), count=pl.len())
        .join(fragmented, on=key, how="left", nulls_equal=True)
        .with_columns(pl.col("fragmented").fill_null(0))
        .sort(-pl.col("held"), *key)
    )


def fragmentation(history: History, peak: Mapping[str, Any]) -> Fragmentation:
    """Return the reserved but unusable memory at a peak, a row of ``PEAKS``."""
    size = pl.col("size")
    snapshot, lives = _here(history, peak["device"], peak["event"])
    blocks = blocks_at(snapshot, lives, peak["event"])
    every = free_blocks(snapshot, lives, peak["event"])
    free = every.filter(~_private())
    held = _holders(blocks, free).filter(pl.col("fragmented") > 0)
    return Fragmentation(
        rounding=_total(blocks, pl.col("block") - size),
        fragmented=_total(free.filter(pl.col("held") > 0), size),
        releasable=_total(free.filter(pl.col("held") == 0), size),
        largest=_total(free, size.max().fill_null(0)),
        free_blocks=free.height,
        pending=peak["active"] - peak["allocated"],
        private=_total(every.filter(_private()), size),
        holders=held.sort("fragmented", "held", descending=True, maintain_order=True),
    )


def _total(rows: pl.DataFrame, what: pl.Expr) -> int:
    return int(rows.select(what.sum()).item())


def fullest(curve: pl.DataFrame) -> pl.DataFrame:
    """Return the moment of each device with the most reserved memory.

    Of several such moments the one with the most allocated: what is free then was
    never needed at once with the rest.
    """
    return curve.sort(
        "device", "reserved", "allocated", descending=[False, True, True]
    ).unique("device", keep="first", maintain_order=True)


def segment_churn(history: History) -> pl.DataFrame:
    """Return the segment memory that each step allocates and frees; ``CHURN``."""
    allocated, freed = text("action").is_in(_ALLOCATED), text("action").is_in(_FREED)
    events = (
        history.driver_events.filter(allocated | freed)
        .join(history.phases.select("event", "step"), left_on="id", right_on="event")
        .filter(pl.col("step").is_not_null())
    )
    size, stack = pl.col("size"), pl.col("stack")
    return CHURN.shaped(
        events.group_by("device", "step")
        .agg(
            allocated=size.filter(allocated).sum(),
            freed=size.filter(freed).sum(),
            allocs=allocated.sum(),
            frees=freed.sum(),
            alloc_stack=stack.filter(allocated).drop_nulls().mode().min(),
            free_stack=stack.filter(freed).drop_nulls().mode().min(),
        )
        .sort("device", "step")
    )


def emptied_by(snapshot: Snapshot, stack: int) -> str:
    """Return whether capturing ``graphs``, or ``empty_cache``, freed segments.

    Empty if neither is on the stack: then the allocator itself looked for room.
    """
    frames = snapshot.frames[snapshot.stacks["frames"][stack].to_list()]
    if frames["file"].cast(pl.String).str.contains(_GRAPHS).any():
        return "graphs"
    emptied = frames["function"].cast(pl.String).str.contains(_EMPTIES)
    return "empty_cache" if emptied.any() else ""
