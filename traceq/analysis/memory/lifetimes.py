"""From when to when each allocation of a memory snapshot lived."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.expressions import asof
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
_STATED = ("stack", "step", "phase", "stretch")


def memory_lifetimes(snapshot: Snapshot, phases: pl.DataFrame) -> pl.DataFrame:
    """Return all allocations; ``LIFETIMES`` has the columns.

    At every moment the sizes of those that live add up to what is allocated in the
    curve. ``phases`` are those of ``event_phases``.
    """
    events = pl.concat([snapshot.events, phases.drop("event")], how="horizontal")
    events = _numbered(events)
    allocs = events.filter(pl.col("action") == "alloc")
    frees = events.filter(pl.col("action") != "alloc").unique(
        [*_KEY, "number"], keep="first", maintain_order=True
    )
    lives = allocs.join(
        frees.select(*_KEY, "number", "size", "id", "ts", *_STATED),
        on=[*_KEY, "number"],
        how="full",
        suffix="_end",
        coalesce=True,
    ).select(
        *_KEY,
        "stream",
        "pool",
        "compile_context",
        pl.coalesce("size", "size_end"),
        *_STATED,
        alloc="id",
        alloc_ts="ts",
        free="id_end",
        free_ts="ts_end",
        **{f"free_{name}": f"{name}_end" for name in _STATED},
    )
    lives = pl.concat([lives, _from_before(snapshot, lives)], how="diagonal_relaxed")
    in_order = ["device", "alloc", "address", "free"]
    return LIFETIMES.shaped(
        lives.with_columns(pl.coalesce("pool", _pools(snapshot, lives))).sort(in_order)
    )


def live_at(lifetimes: pl.DataFrame, event: int | None) -> pl.DataFrame:
    """Return what lived right after an event, or before the first one."""
    alloc, free = pl.col("alloc"), pl.col("free")
    if event is None:
        return lifetimes.filter(alloc.is_null())
    return lifetimes.filter(
        (alloc <= event).fill_null(value=True), (free > event).fill_null(value=True)
    )


def _numbered(events: pl.DataFrame) -> pl.DataFrame:
    """Return the events on blocks, with the ``number`` of the life at its address.

    A life begins with its alloc; if that is not in the history, with its free.
    """
    action = pl.col("action").cast(pl.String)
    before = action.shift(1).over(_KEY)
    begins = (
        pl.when(action == "alloc")
        .then(statement=True)
        .when(action == "free_requested")
        .then((before != "alloc").fill_null(value=True))
        .otherwise(before.is_null() | (before == "free_completed"))
    )
    return (
        events.filter(action.is_in(["alloc", "free_requested", "free_completed"]))
        .sort(*_KEY, "id")
        .with_columns(number=begins.cast(NUMBER).cum_sum().over(_KEY))
    )


def _from_before(snapshot: Snapshot, lives: pl.DataFrame) -> pl.DataFrame:
    """Return blocks that tensors hold at the end without any event in the history."""
    held = snapshot.blocks.filter(pl.col("state") == _HELD)
    known = lives.filter(pl.col("free").is_null())
    return held.join(known, on=_KEY, how="anti").select(
        *_KEY, "stack", size="requested"
    )


def _pools(snapshot: Snapshot, lives: pl.DataFrame) -> pl.Series:
    """Return the pool of the segment around each address, as of the end."""
    segments = snapshot.segments.select(
        "device", "pool", begin="address", end=pl.col("address") + pl.col("size")
    )
    rows = lives.select(*_KEY).with_row_index("row")
    found = asof(rows, segments, "address", "begin", by="device")
    inside = pl.when(pl.col("address") < pl.col("end")).then("pool")
    return found.sort("row").select(inside).to_series()
