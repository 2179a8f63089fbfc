"""MEM010: an allocation failed for want of memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from traceq.analysis.memory.oom import Room, failures, holders, room
from traceq.lint import Bad, Good, Need, Rule, Severity
from traceq.words import counted, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding, SnapshotView

_MOST_HOLDERS = 4
# A program that ends may still clean up; one that allocates this often goes on.
_GOES_ON = 100
_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_ADVICE = {
    "fragmented": f"set {_EXPANDABLE}: free pieces between tensors are of use then;"
    " or drop first what lies between them: {first}",
    "fragmented, expandable": "drop first what lies between the free pieces: {first};"
    " or allocate it before what is short-lived",
    "limited": "the device has room, but a limit forbids to take it: raise"
    " torch.cuda.set_per_process_memory_fraction; or drop first: {first}",
    "full": "use less: drop first {first}; or a smaller batch, activation"
    " checkpointing, a narrower type",
}


@dataclass(frozen=True)
class FailedAllocation(Rule):
    """An allocation failed for want of memory.

    ## What it does

    Looks for failed allocations in the history, and compares what was asked for with
    what was free at that moment: on the device, and in the allocator's segments, piece
    by piece. It lists the lines that held the most then, what a model cannot do
    without (weights, gradients, state of the optimizer) last.

    ## Why is this bad?

    Most programs end with it. One that goes on has emptied the allocator's cache, and
    waits for the driver from then on.

    ## How to fix it

    If enough was free, but in pieces: ``expandable_segments:True``. If the device has
    room, a limit was set. Otherwise something has to go, the first in the list first.

    ## When it is wrong

    Programs that look for the largest batch provoke the failure on purpose, and cuDNN
    tries whether there is room for a faster algorithm: where the program goes on, it is
    a warning only. What other processes hold on the device is not in the snapshot.
    """

    code = "MEM010"
    since = "0.1.0"
    severity = Severity.error
    needs = frozenset({Need.SNAPSHOT, Need.HISTORY})
    priced = False

    examples = (
        Bad(
            "",
            history="""
            segment                <20M
            segment                <20M
            train.py:9 main         [9M
            train.py:10 main        [11M    ]
            train.py:9 main         [9M
            train.py:10 main        [11M    ]
            oom train.py:12 main              [16M of 1M]
            """,
            finds=(
                "16.0 MiB could not be allocated: 22.0 MiB were reserved and free, but"
                " in 2 pieces of at most 11.0 MiB",
            ),
        ),
        Bad(
            "",
            history="""
            segment                <80M
            train.py:9 main         [78M
            oom train.py:12 main              [16M of 1M]
            """,
            finds=(
                "16.0 MiB could not be allocated: 2.00 MiB were reserved and free, and"
                " 1.00 MiB on the device",
            ),
        ),
        Good(
            "",
            history="""
            segment                <80M
            train.py:9 main         [9M
            train.py:12 main                  [16M
            """,
        ),
    )

    def check_snapshot(self, view: SnapshotView) -> Iterator[Finding]:
        """Say of the first failure at each line why it did not fit."""
        found = failures(view.snapshot, view.curve, view.sources)
        groups = found.group_by("device", "file", "line", maintain_order=True)
        for _, group in groups:
            yield self._finding(view, group.row(0, named=True), group.height)

    def _finding(self, view: SnapshotView, row: dict[str, Any], count: int) -> Finding:
        there = room(view.snapshot, view.allocations, row)
        held = holders(
            view.snapshot, view.allocations, row["device"], row["event"]
        ).to_dicts()
        first = _line(held[0]) if held else "nothing"
        goes_on = there.after >= _GOES_ON
        expandable = view.snapshot.segments["expandable"].any()
        cause = f"{there.cause}, expandable" if expandable else there.cause
        advice = _ADVICE.get(cause, _ADVICE[there.cause])
        return self.finding(
            f"{size(row['asked'])} could not be allocated: {_why(there, row)}",
            subject=there.cause,
            place=view.place(row),
            count=count,
            cost_bytes=row["asked"],
            evidence=[
                (
                    "held",
                    f"{size(row['allocated'])} by tensors, of {size(row['reserved'])}"
                    " reserved",
                ),
                ("device", f"{size(row['device_free'] or 0)} free{_limit(row)}"),
                ("streams", _elsewhere(there)),
                *(("held by", _held(one)) for one in held[:_MOST_HOLDERS]),
                ("after", _after(there) if goes_on else ""),
                *view.lines(row, row["asked"]),
            ],
            data={
                "device": row["device"],
                "asked_bytes": row["asked"],
                "device_free_bytes": row["device_free"] or 0,
                "allocated_bytes": row["allocated"],
                "reserved_bytes": row["reserved"],
                **asdict(there),
            },
            severity=Severity.warning if goes_on else None,
            advice=advice.format(first=first),
        )


def _why(there: Room, row: dict[str, Any]) -> str:
    reserved = f"{size(there.free)} were reserved and free"
    if there.cause == "fragmented":
        return (
            f"{reserved}, but in {counted(there.pieces, 'piece')} of at most"
            f" {size(there.largest)}"
        )
    text = f"{reserved}, and {size(row['device_free'] or 0)} on the device"
    return f"{text}, which a limit forbids" if there.cause == "limited" else text


def _limit(row: dict[str, Any]) -> str:
    if (row["device_free"] or 0) < row["asked"]:
        return ""
    return "; a limit forbids to take it (set_per_process_memory_fraction)"


def _elsewhere(there: Room) -> str:
    if not there.elsewhere:
        return ""
    return f"{size(there.elsewhere)} more are free, but for other streams"


def _after(there: Room) -> str:
    return f"the program goes on: {counted(there.after, 'allocation')} follow"


def _held(row: dict[str, Any]) -> str:
    """Write who holds how much."""
    kind = "" if row["category"] == "unknown" else f"{row['category']} "
    beside = f", {size(row['beside'])} free beside" if row["beside"] else ""
    return (
        f"{size(row['held'])} {kind}in {counted(row['count'], 'allocation')}{beside}:"
        f" {_line(row)}"
    )


def _line(row: dict[str, Any]) -> str:
    if not row["file"]:
        return "line not recorded"
    return f"{row['file']}:{row['line']} {row['function']}"
