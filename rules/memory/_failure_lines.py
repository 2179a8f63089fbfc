"""Evidence on a failed allocation: who holds memory, and how much is free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traceq.linter import Evidence, counted, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.analysis.memory import oom


def is_limited(row: dict[str, Any]) -> bool:
    """Return whether the device had room."""
    return (row["device_free"] or 0) >= row["asked"]


def totals(room: oom.Room, row: dict[str, Any]) -> Iterator[Evidence]:
    """Yield what was held and what was free."""
    yield Evidence(
        "held",
        value=row["allocated"],
        unit="bytes",
        note=f"by tensors, of {size(row['reserved'])} reserved",
    )
    limit = "; a limit forbids using it (set_per_process_memory_fraction)"
    yield Evidence(
        "device",
        value=row["device_free"] or 0,
        unit="bytes",
        note="free" + (limit if is_limited(row) else ""),
    )
    if room.other_streams:
        yield Evidence(
            "streams",
            value=room.other_streams,
            unit="bytes",
            note="more are free, but for other streams",
        )


def holder_line(row: dict[str, Any]) -> Evidence:
    """Return who holds how much."""
    kind = "" if row["category"] == "unknown" else f" of {row['category']}"
    free = row["fragmented"]
    beside = f", {size(free)} free in the same segments" if free else ""
    return Evidence(
        "held by",
        f"{place_line(row)}:",
        row["held"],
        "bytes",
        note=f"in {counted(row['count'], 'allocation')}{kind}{beside}",
    )


def after_failure(room: oom.Room) -> Evidence:
    allocations = counted(room.allocations_after, "allocation")
    return Evidence("after", f"the program goes on: {allocations} follow")


def place_line(row: dict[str, Any]) -> str:
    if not row["file"]:
        return "line not recorded"
    return f"{row['file']}:{row['line']} {row['function']}"
