"""The tables of a memory snapshot: every column, its type, its unit, its meaning.

Sizes are integer bytes. Times are integer nanoseconds, ``ts`` counted from the first
time in the file (``SnapshotFacts.start_ns``); snapshots before torch 2.2 have none,
their events are in order all the same. An ``id`` is the row number of its table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from traceq.errors import UsageError
from traceq.model.owners import NOBODY, Owners
from traceq.model.schema import ID, NS, NUMBER, TEXT, Column, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "annotate",
    "other",
)
DEFAULT_POOL = "0.0"
"""The pool of whatever asks for no other; CUDA graphs have pools of their own."""
STATES = ("active_allocated", "active_pending_free", "inactive", "other")

_ROW = Column(ID, "Row number; other tables point here.")
_DEVICE = Column(NUMBER, "The GPU's ordinal.")
_TS = Column(NS, "When, since the first time in the file; none before 2.2.", "ns")
_STREAM = Column(NUMBER, "The stream's handle; 0 is the default stream.")
_POOL = Column(
    TEXT, f"Memory pool; {DEFAULT_POOL} is the default, CUDA graphs have others."
)
_STACK = Column(ID, "The call stack; none if not recorded.", "stacks.id")

EVENTS = {
    "id": _ROW,
    "device": _DEVICE,
    "action": Column(pl.Enum(ACTIONS), "What happened: " + ", ".join(ACTIONS) + "."),
    "address": Column(NUMBER, "Address of the block or segment; none for oom."),
    "size": Column(
        NUMBER,
        "As asked for, not rounded up; of an earlier snapshot all active bytes.",
        "bytes",
    ),
    "stream": _STREAM,
    "ts": _TS,
    "stack": _STACK,
    "device_free": Column(NUMBER, "Free on the device; for oom only.", "bytes"),
    "pool": _POOL,
    "compile_context": Column(TEXT, "Compiled region around it; torch 2.8 on."),
    "user_metadata": Column(
        TEXT,
        "What the user attached; torch 2.10 on, of a live allocation as annotate.",
    ),
}

SEGMENTS = {
    "id": _ROW,
    "device": _DEVICE,
    "address": Column(NUMBER, "Where it begins."),
    "size": Column(NUMBER, "Reserved from the device.", "bytes"),
    "allocated": Column(NUMBER, "In blocks that tensors hold, rounded up.", "bytes"),
    "active": Column(
        NUMBER, "In those and blocks that a stream may still use.", "bytes"
    ),
    "requested": Column(NUMBER, "What was asked for in active blocks.", "bytes"),
    "stream": _STREAM,
    "kind": Column(TEXT, "Holds small blocks, up to 1 MiB, or large ones."),
    "pool": _POOL,
    "expandable": Column(pl.Boolean(), "May grow in place (expandable_segments)."),
    "stack": _STACK,
}

BLOCKS = {
    "id": _ROW,
    "segment": Column(ID, "The segment that it is a part of.", "segments.id"),
    "device": _DEVICE,
    "address": Column(NUMBER, "Where it begins."),
    "size": Column(NUMBER, "Size, rounded up.", "bytes"),
    "requested": Column(NUMBER, "What was asked for; 0 if inactive.", "bytes"),
    "state": Column(pl.Enum(STATES), "State: " + ", ".join(STATES) + "."),
    "stack": _STACK,
}

STACKS = {
    "id": _ROW,
    "frames": Column(pl.List(ID), "Its frames, the innermost first.", "frames.id"),
}

FRAMES = {
    "id": _ROW,
    "file": Column(TEXT, "Source file; ?? where C++ has none."),
    "line": Column(NUMBER, "Line that was running; 0 in C++."),
    "function": Column(TEXT, "Function."),
}

ANNOTATIONS = {
    "id": _ROW,
    "device": _DEVICE,
    "name": Column(TEXT, "Name of the region, as ProfilerStep#3; torch 2.5 on."),
    "stage": Column(TEXT, "START or END of it."),
    "ts": _TS,
}

DEVICES = {
    "device": _DEVICE,
    "segments": Column(NUMBER, "Segments at the end."),
    "events": Column(NUMBER, "Events in its history."),
    "reserved": Column(NUMBER, "Reserved at the end.", "bytes"),
    "allocated": Column(NUMBER, "Held by tensors at the end, rounded up.", "bytes"),
    "requested": Column(NUMBER, "Held by tensors at the end, as asked for.", "bytes"),
    "pending": Column(
        NUMBER, "Freed but still in use by a stream, as asked for.", "bytes"
    ),
    "lost": Column(NUMBER, "Live blocks with a stack whose events are gone."),
}

SETTINGS = {
    "name": Column(pl.String(), "The allocator's setting, as max_split_size."),
    "value": Column(pl.String(), "Its value as text."),
}

SNAPSHOT_TABLES: Mapping[str, Table] = {
    "events": Table("What the allocator did, per device in order.", EVENTS),
    "segments": Table("What was reserved from the device at the end.", SEGMENTS),
    "blocks": Table("What the segments were cut into at the end.", BLOCKS),
    "stacks": Table("Distinct call stacks; events and blocks point here.", STACKS),
    "frames": Table("Distinct places in the program; stacks point here.", FRAMES),
    "annotations": Table("Begin and end of named regions.", ANNOTATIONS),
    "devices": Table("The allocator's own totals at the end.", DEVICES),
    "settings": Table("How the allocator was set up; torch 2.3 on.", SETTINGS),
}


def _fact(meaning: str) -> dict[str, str]:
    return {"meaning": meaning}


@dataclass(frozen=True)
class SnapshotFacts:
    """Facts about a snapshot: its recording and its completeness."""

    path: str = field(metadata=_fact("The file, as it was given."))
    unpacked_bytes: int = field(metadata=_fact("Size of the file, unpacked."))
    start_ns: int | None = field(
        metadata=_fact("When ts is 0, in nanoseconds of Unix time, if the file has it.")
    )
    torch_from: str = field(metadata=_fact("Oldest torch that writes such a file."))
    history: bool = field(metadata=_fact("There are events, not only the end state."))
    stacks: bool = field(metadata=_fact("Call stacks were recorded."))
    pinned_bytes: int | None = field(
        metadata=_fact("Pinned host memory that is reserved at the end, if recorded.")
    )
    damage: tuple[str, ...] = field(
        metadata=_fact("What the file has lost; empty if nothing is known to be.")
    )

    @property
    def incomplete(self) -> bool:
        """True if a part of the history is lost."""
        return bool(self.damage)


@dataclass(frozen=True, repr=False)
class Snapshot:
    """A memory snapshot as Polars frames; ``SNAPSHOT_TABLES`` says what is in them."""

    facts: SnapshotFacts
    events: pl.DataFrame
    segments: pl.DataFrame
    blocks: pl.DataFrame
    stacks: pl.DataFrame
    frames: pl.DataFrame
    annotations: pl.DataFrame
    devices: pl.DataFrame
    settings: pl.DataFrame
    owners: Owners = NOBODY
    """Code known to be the user's own, beyond what its path tells."""

    def __repr__(self) -> str:
        return (
            f"<Snapshot {self.facts.path}: {self.events.height:,} events,"
            f" {self.segments.height:,} segments, {self.blocks.height:,} blocks>"
        )

    def table(self, name: str) -> pl.DataFrame:
        """Return one table by its name."""
        if name not in SNAPSHOT_TABLES:
            msg = f"there is no table {name!r}; there are " + ", ".join(SNAPSHOT_TABLES)
            raise UsageError(msg)
        frame: pl.DataFrame = getattr(self, name)
        return frame
