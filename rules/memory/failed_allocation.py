"""MEM010: out of memory, an allocation failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traceq.linter import (
    Bad,
    Good,
    Need,
    Rule,
    Seen,
    Severity,
    dataclass,
    size,
)

from ._failure_lines import (
    after_failure,
    goes_on,
    holder_line,
    place_of,
    totals,
    usual_advice,
    why,
    with_line,
)
from ._oom_changes import advice, categories, change_lines, live_line, what_ran

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, SnapshotView

_MOST_HOLDERS = 4


@dataclass(frozen=True)
class FailedAllocation(Rule):
    """Out of memory (OOM): an allocation failed.

    ## What it does

    Looks for failed allocations in the history, and compares what was requested with
    what was free at that moment: on the device, and in the allocator's segments, block
    by block. It lists the lines that held the most memory then; what a model cannot do
    without (weights, gradients, optimizer state) comes last.

    ## Why is this bad?

    Most programs end with it. One that goes on has emptied the allocator's cache, and
    waits for the driver from then on.

    ## How to fix it

    If the device has room, a limit was set: raise it. If it has none, and enough was
    reserved and free, but fragmented: ``expandable_segments:True``. Otherwise something
    has to go, the first in the list first.

    ```diff
    - python train.py
    + PYTORCH_ALLOC_CONF=expandable_segments:True python train.py
    ```

    ## When it is wrong

    Programs that search for the largest batch run into OOM intentionally, and cuDNN
    tries whether there is room for a faster algorithm: where the program goes on, it is
    only a warning. What other processes hold on the device is not in the snapshot.
    """

    code = "MEM010"
    several_fixes = True
    since = "0.1.0"
    see = ("PYTORCH_ALLOC_CONF", "torch.cuda.memory._record_memory_history")
    severity = Severity.error
    needs = frozenset({Need.SNAPSHOT, Need.HISTORY})
    priced = False

    seen = Seen(
        of="fixtures/twins/oom_fragmented",
        text="""
        MEM010 failed-allocation (error)  512 MiB (13%)
          OOM on 512 MiB: 2.09 GiB are reserved and free, but fragmented into 195
            blocks of at most 11.0 MiB
          at       dev_cases.py:198 oom
          held     1.71 GiB by tensors, of 3.81 GiB reserved
          device   135 GiB free; a limit forbids using it
                   (set_per_process_memory_fraction)
          held by  dev_cases.py:195 oom: 1.71 GiB in 195 allocations, 2.09 GiB free
                   in the same segments
          from     dev_cases.py:212 main, dev_cases.py:239 <module>
          op       aten::empty
          fix      the device has room, but a limit forbids using it: raise
                   torch.cuda.set_per_process_memory_fraction; or free first what
                   lies between the free blocks: dev_cases.py:195 oom
        """,
    )

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
                "OOM on 16.0 MiB: 22.0 MiB are reserved and free, but fragmented into 2"
                " blocks of at most 11.0 MiB",
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
                "OOM on 16.0 MiB: only 2.00 MiB are reserved and free, and 1.00 MiB is"
                " free on the device",
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
        """Report of the first failure at each line why it did not fit."""
        from traceq.analysis.memory import oom_changes

        groups = oom_changes.failures(view).group_by(
            "device", "file", "line", maintain_order=True
        )
        for _, group in groups:
            yield self._finding(view, group.row(0, named=True), group.height)

    def _finding(self, view: SnapshotView, row: dict[str, Any], count: int) -> Finding:
        from traceq.analysis.memory import oom_changes

        failed = oom_changes.failure(view, row, view.oom)
        context, room = failed.context, failed.room
        changes = oom_changes.changes(failed)
        held = failed.holders.to_dicts()
        live: Any = categories(failed)
        fitting: Any = changes.to_dicts()
        return self.finding(
            f"OOM on {size(row['asked'])}: {why(failed)}",
            subject=room.cause,
            place=place_of(view, failed),
            count=count,
            cost_bytes=row["asked"],
            evidence=[
                *what_ran(failed),
                *totals(failed),
                *([live_line(live)] if context else ()),
                *map(holder_line, held[:_MOST_HOLDERS]),
                *change_lines(changes, failed.needed),
                *after_failure(failed),
                *view.lines(with_line(failed), row["asked"]),
            ],
            data={
                "device": row["device"],
                "requested_bytes": row["asked"],
                "device_free_bytes": row["device_free"] or 0,
                "allocated_bytes": row["allocated"],
                "reserved_bytes": row["reserved"],
                "free_bytes": room.free,
                "free_blocks": room.free_blocks,
                "largest_free_bytes": room.largest,
                "other_streams_bytes": room.other_streams,
                "cause": room.cause,
                "allocations_after": room.allocations_after,
                "missing_bytes": failed.missing,
                "later_bytes": failed.later,
                "phase": failed.phase,
                "step": context.step if context else None,
                "modules": [module.path or module.kind for module in context.modules]
                if context
                else [],
                "live": live,
                "changes": fitting,
            },
            severity=Severity.warning if goes_on(failed) else None,
            advice=advice(changes, failed) or usual_advice(failed, held),
        )
