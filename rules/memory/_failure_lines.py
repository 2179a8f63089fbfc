"""Evidence on a failed allocation: who holds memory, and how much is free."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from traceq.linter import Evidence, counted, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.analysis.memory import oom_changes
    from traceq.linter import Place, SnapshotView

# A program that ends may still clean up; one that allocates this often goes on.
_GOES_ON = 100
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
    "fragmented, small": "free first what lies between the free blocks: {first}; or"
    " allocate it before what is short-lived, or as parts of one tensor",
    "limited": "the device has room, but a limit forbids using it: raise"
    " torch.cuda.set_per_process_memory_fraction; or free first: {first}",
    "full": "use less: free first {first}; or a smaller batch, activation"
    " checkpointing, a smaller dtype",
}

_LARGEST = "the largest tensors (record stacks to see their lines)"


def totals(failed: oom_changes.Failure) -> Iterator[Evidence]:
    """Yield what was held and what was free."""
    row, others = failed.row, failed.room.other_streams
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
        note="free" + (limit if failed.limited else ""),
    )
    if others:
        yield Evidence(
            "streams",
            value=others,
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


def why(failed: oom_changes.Failure) -> str:
    """Return why it did not fit."""
    room = failed.room
    if room.cause == "fragmented":
        return (
            f"{size(room.free)} are reserved and free, but fragmented into"
            f" {counted(room.free_blocks, 'block')} of at most {size(room.largest)}"
        )
    on_device = f"{size(failed.row['device_free'] or 0)} is free on the device"
    limit = ", which a limit forbids using" if room.cause == "limited" else ""
    return f"only {size(room.free)} are reserved and free, and {on_device}{limit}"


def goes_on(failed: oom_changes.Failure) -> bool:
    """Return whether the program went on after it."""
    steps = failed.context.steps_after if failed.context else 0
    return steps > 0 or failed.room.allocations_after >= _GOES_ON


def after_failure(failed: oom_changes.Failure) -> Iterator[Evidence]:
    """Yield how the program went on, if it did."""
    if goes_on(failed):
        follow = counted(failed.room.allocations_after, "allocation")
        if failed.context and failed.context.steps_after:
            follow = counted(failed.context.steps_after, "step")
        yield Evidence("after", f"the program goes on: {follow} follow")


def place_line(row: dict[str, Any]) -> str:
    if not row["file"]:
        return "line not recorded"
    return f"{row['file']}:{row['line']} {row['function']}"


def usual_advice(failed: oom_changes.Failure, held: list[dict[str, Any]]) -> str:
    """Return what helps where nothing is known but who holds memory."""
    cause = failed.room.cause
    named = held and held[0]["file"]
    first = place_line(held[0]) if named else _LARGEST
    exact = cause
    if failed.limited:
        exact += ", limited"
    elif failed.history.snapshot.segments["expandable"].any():
        exact += ", expandable"
    elif failed.room.whole_pages < failed.missing:
        exact += ", small"
    return _ADVICE.get(exact, _ADVICE[cause]).format(first=first)


def with_line(failed: oom_changes.Failure) -> dict[str, Any]:
    """Return a failure with the program's line: a thread of autograd has none."""
    row = dict(failed.row)
    stack = failed.context.stack if failed.context else ()
    if row["file"] or not stack:
        return row
    first = stack[0]
    chain = "\n".join(f"{line.file}:{line.line} {line.function}" for line in stack)
    place = {"file": first.file, "line": first.line, "function": first.function}
    return {**row, **place, "chain": chain}


def place_of(view: SnapshotView, failed: oom_changes.Failure) -> Place:
    """Return where it failed, in the module that ran."""
    place = view.place(with_line(failed), failed.row["asked"])
    module = failed.context.module if failed.context else None
    if place.module or module is None:
        return place
    return replace(place, module=module.path or module.kind)
