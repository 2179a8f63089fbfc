"""Lifetimes of the allocations of a memory snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.common.expressions import asof
from traceq.model.schema import ID, NS, NUMBER, PHASES, TEXT, Column, Table

if TYPE_CHECKING:
    from traceq.model.snapshot import Snapshot

LIFETIMES = Table(
    "One row for each allocation, also those from before the history.",
    {
        "device": Column(NUMBER, "The GPU's ordinal."),
        "address": Column(NUMBER, "Where it began; addresses are used again."),
        "size": Column(NUMBER, "As asked for, not rounded up.", "bytes"),
        "stream": Column(NUMBER, "The stream's handle; none from before the history."),
        "pool": Column(
            TEXT, "Memory pool; before torch 2.12 that of its segment at the end."
        ),
        "alloc": Column(ID, "Its event; none from before the history.", "events.id"),
        "free": Column(
            ID, "The event that freed it; none if live at the end.", "events.id"
        ),
        "alloc_ts": Column(NS, "When, as in events.", "ns"),
        "free_ts": Column(NS, "When, as in events.", "ns"),
        "stack": Column(ID, "Where it was allocated, if recorded.", "stacks.id"),
        "free_stack": Column(ID, "Where it was freed.", "stacks.id"),
        "step": Column(NUMBER, "Step of its allocation."),
        "free_step": Column(NUMBER, "Step in which it was freed."),
        "phase": Column(pl.Enum(PHASES), "Part of the step of its allocation."),
        "free_phase": Column(pl.Enum(PHASES), "The same of its free."),
        "stretch": Column(NUMBER, "Unbroken stretch of one phase of its allocation."),
        "free_stretch": Column(NUMBER, "The same of its free."),
        "compile_context": Column(TEXT, "Compiled region around its allocation."),
    },
)

_KEY = ("device", "address")
_HELD = "active_allocated"
_OF_BLOCKS = ("alloc", "free_requested", "free_completed")
_PHASES = ("step", "phase", "stretch")
_TOLD = ("size", "stream", "pool", "stack", "compile_context")


def memory_lifetimes(snapshot: Snapshot, phases: pl.DataFrame) -> pl.DataFrame:
    """Return all allocations; ``LIFETIMES`` has the columns.

    At every moment the sizes of those that live add up to what is allocated in the
    curve. ``phases`` are those of ``event_phases``.
    """
    lives = _lives(snapshot.events)
    lives = pl.concat([lives, _from_before(snapshot, lives)], how="diagonal")
    # Facts about events are looked up in this order, that of the events.
    lives = lives.sort("device", "alloc", "address", "free")
    event_rows = pl.concat(
        [snapshot.events.select(*_TOLD, "ts"), phases.select(*_PHASES)],
        how="horizontal",
    )
    at_alloc = event_rows[lives["alloc"]].rename({"ts": "alloc_ts"})
    at_free = event_rows.select("size", "ts", "stack", *_PHASES)[lives["free"]].select(
        pl.all().name.prefix("free_")
    )
    columns = pl.concat(
        [lives.rename({"stack": "held_stack", "size": "held"}), at_alloc, at_free],
        how="horizontal",
    )
    return LIFETIMES.shaped(
        columns.with_columns(
            pl.coalesce("stack", "held_stack"),
            pl.coalesce("size", "free_size", "held"),
            pl.coalesce("pool", _pools(snapshot, lives)),
        )
    )


def live_at(lifetimes: pl.DataFrame, event: int | None) -> pl.DataFrame:
    """Return the allocations live right after an event, or before the first one."""
    alloc, free = pl.col("alloc"), pl.col("free")
    if event is None:
        return lifetimes.filter(alloc.is_null())
    return lifetimes.filter(
        (alloc <= event).fill_null(value=True), (free > event).fill_null(value=True)
    )


def _lives(events: pl.DataFrame) -> pl.DataFrame:
    """Return address and size of each allocation, and its alloc and free events.

    A life begins with its alloc; if that is not in the history, with its free.
    """
    action = pl.col("action")
    # The events of an address are put side by side: what is next to each other then
    # belongs together, and nothing needs to be looked up.
    rows = (
        events.filter(action.is_in(_OF_BLOCKS))
        .select(*_KEY, "id", "action")
        .group_by(_KEY, maintain_order=True)
        .agg("id", "action", first=pl.int_range(pl.len()) == 0)
        .explode("id", "action", "first")
    )
    before = action.shift(1)
    begins = (
        pl.col("first")
        | (action == "alloc")
        | ((action == "free_requested") & (before != "alloc"))
        | ((action == "free_completed") & (before == "free_completed"))
    )
    rows = rows.with_columns(begins=begins)
    # An alloc begins a life, so that what goes on in one is a free.
    goes_on = ~pl.col("begins").shift(-1, fill_value=True)
    is_alloc = action == "alloc"
    return (
        rows.with_columns(
            alloc=pl.when(is_alloc).then("id"),
            free=pl.when(~is_alloc)
            .then("id")
            .when(goes_on)
            .then(pl.col("id").shift(-1)),
        )
        .filter("begins")
        .select(*_KEY, "alloc", "free")
    )


def _from_before(snapshot: Snapshot, lives: pl.DataFrame) -> pl.DataFrame:
    """Return blocks that tensors hold at the end without any event in the history."""
    held = snapshot.blocks.filter(pl.col("state") == _HELD)
    live = lives.filter(pl.col("free").is_null())
    return held.join(live, on=_KEY, how="anti").select(*_KEY, "stack", size="requested")


def _pools(snapshot: Snapshot, lives: pl.DataFrame) -> pl.Series:
    """Return the pool of the segment around each address, as of the end."""
    segments = snapshot.segments.select(
        "device", "pool", begin="address", end=pl.col("address") + pl.col("size")
    )
    addresses = lives.select(*_KEY).unique()
    pools = asof(addresses, segments, "address", "begin", by="device")
    inside = pl.when(pl.col("address") < pl.col("end")).then("pool")
    pools = pools.select(*_KEY, pool=inside)
    return lives.select(*_KEY).join(
        pools, on=_KEY, how="left", maintain_order="left", nulls_equal=True
    )["pool"]
