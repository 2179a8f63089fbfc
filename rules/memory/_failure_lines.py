"""Evidence on a failed allocation: who holds memory, and how much is free."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from traceq.linter import Evidence, counted, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.analysis.memory import oom
    from traceq.linter import Place, SnapshotView
    from traceq.model.oom import OutOfMemory

_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_ADVICE = {
    "fragmented": f"set {_EXPANDABLE}: free blocks between tensors can be used then; or"
    " free first what lies between them: {first}",
    # Expandable segments did not help there: see what was measured.
    "fragmented, limited": "the device has room, but a limit forbids using it: raise"
    " torch.cuda.set_per_process_memory_fraction; or free first what lies between the"
    " free blocks: {first}",
    "fragmented, expandable": "free first what lies between the free blocks: {first};"
    " or allocate it before what is short-lived",
    "limited": "the device has room, but a limit forbids using it: raise"
    " torch.cuda.set_per_process_memory_fraction; or free first: {first}",
    "full": "use less: free first {first}; or a smaller batch, activation"
    " checkpointing, a smaller dtype",
}


def totals(room: oom.Room, row: dict[str, Any]) -> Iterator[Evidence]:
    """Yield what was held and what was free."""
    from traceq.analysis.memory.oom import is_limited

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


def usual_advice(
    view: SnapshotView, row: dict[str, Any], cause: str, held: list[dict[str, Any]]
) -> str:
    """Return what helps where nothing is known but who holds memory."""
    from traceq.analysis.memory.oom import is_limited

    first = place_line(held[0]) if held else "nothing"
    exact = cause
    if is_limited(row):
        exact += ", limited"
    elif view.snapshot.segments["expandable"].any():
        exact += ", expandable"
    return _ADVICE.get(exact, _ADVICE[cause]).format(first=first)


def with_line(row: dict[str, Any], oom: OutOfMemory | None) -> dict[str, Any]:
    """Return a failure with the program's line: a thread of autograd has none."""
    if row["file"] or oom is None or not oom.stack:
        return row
    first = oom.stack[0]
    chain = "\n".join(f"{one.file}:{one.line} {one.function}" for one in oom.stack)
    place = {"file": first.file, "line": first.line, "function": first.function}
    return {**row, **place, "chain": chain}


def place_of(view: SnapshotView, row: dict[str, Any], oom: OutOfMemory | None) -> Place:
    """Return where it failed, in the module that ran."""
    place = view.place(row, row["asked"])
    module = oom.module if oom is not None else None
    if place.module or module is None:
        return place
    return replace(place, module=module.path or module.kind)
