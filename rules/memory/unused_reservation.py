"""MEM004: far more memory is reserved than tensors ever use at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.linter import (
    NOWHERE,
    Bad,
    Evidence,
    Good,
    Need,
    Rule,
    Seen,
    Severity,
    counted,
    dataclass,
    option,
    size,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Place, SnapshotView

_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_ADVICE = {
    "fragmented": f"set {_EXPANDABLE}: segments then grow and shrink by pages, and free"
    " blocks of any size can be used; or allocate long-lived tensors before the rest",
    "fragmented, expandable": "allocate long-lived tensors before the rest, so that"
    " they do not split free blocks; give all steps the same shapes",
    "segments": "whole segments are free, in sizes that nothing asks for any more: give"
    " all steps the same shapes (pad to a few fixed sizes), call"
    " torch.cuda.empty_cache() once after what needed them (warm-up, validation), or"
    f" set {_EXPANDABLE}",
}


@dataclass(frozen=True)
class UnusedReservation(Rule):
    """Far more memory is reserved than tensors ever use at once.

    ## What it does

    Takes the moment at which the most memory is reserved from the device, and of
    several such moments the one at which tensors hold the most. What is free even then,
    outside of the private pools of CUDA graphs, was never needed in the recorded
    history.

    ## Why is this bad?

    Nobody else can use it: not NCCL, not another process and, if it is fragmented, not
    this program either. It runs out of memory while much of it is free.

    ## How to fix it

    If the free blocks lie between live tensors (fragmentation):
    ``expandable_segments:True``. If whole segments are free, something earlier needed
    other sizes: give all steps the same shapes, or call ``torch.cuda.empty_cache()``
    once after it.

    ```diff
    - python train.py
    + PYTORCH_ALLOC_CONF=expandable_segments:True python train.py
    ```

    ## When it is wrong

    What needs the memory may be outside of the history, such as a validation every
    thousand steps. Histories that allocate less than what is free are not checked.
    Where the trace says how much memory the GPU has, and most of it is not reserved,
    nobody lacks what is free, and the finding is minor.
    """

    code = "MEM004"
    several_fixes = True
    since = "0.1.0"
    see = ("PYTORCH_ALLOC_CONF", "torch.cuda.empty_cache")
    needs = frozenset({Need.SNAPSHOT, Need.HISTORY})

    min_share: float = option(0.25, "A smaller share of what is reserved may be free.")
    min_mib: int = option(64, "Less than this may be free.")

    seen = Seen(
        of="fixtures/captures/graph_rerecord.snapshot.pickle.gz",
        text="""
        MEM004 unused-reservation  1.38 GiB (57%)
          1.38 GiB of 2.43 GiB reserved are free at the fullest moment, in 36 blocks
            of at most 84.0 MiB
          held  931 MiB by tensors at that moment
          free  14.1 MiB fragmented: in segments with live tensors
          free  1.37 GiB in segments that are free as a whole
          fix   whole segments are free, in sizes that nothing asks for any more:
                give all steps the same shapes (pad to a few fixed sizes), call
                torch.cuda.empty_cache() once after what needed them (warm-up,
                validation), or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
        """,
    )

    examples = (
        Bad(
            "",
            history="""
            segment           <100M
            train.py:9 main    [60M
            train.py:10 main    [40M     ]
            segment               [100M
            train.py:9 main       [60M
            train.py:10 main       [40M  ]
            segment                         [80M
            train.py:12 main                [80M
            """,
            finds=(
                "80.0 MiB of 280 MiB reserved are free at the fullest moment, in 2"
                " blocks of at most 40.0 MiB",
            ),
        ),
        Good(
            "",
            history="""
            segment           <100M
            train.py:9 main    [20M
            train.py:10 main   [70M        ]
            train.py:12 main                   [60M
            """,
        ),
    )

    def check_snapshot(self, view: SnapshotView) -> Iterator[Finding]:
        """Look at each device at the moment when the most was reserved."""
        from traceq.analysis.memory import fragmentation

        for row in fragmentation.fullest(view.curve).iter_rows(named=True):
            device = row["device"]
            blocks = fragmentation.shared_free_blocks(view, device, row["event"])
            free = int(blocks["size"].sum())
            requested = view.snapshot.events.filter(
                pl.col("device") == device, pl.col("action") == "alloc"
            )["size"].sum()
            if (
                free >= self.min_share * row["reserved"]
                and free >= self.min_mib << 20
                and requested >= free
            ):
                yield self._finding(view, row, blocks, free)

    def _finding(
        self, view: SnapshotView, row: dict[str, Any], blocks: pl.DataFrame, free: int
    ) -> Finding:
        fragmented = int(blocks.filter(pl.col("held") > 0)["size"].sum())
        cause = "fragmented" if 2 * fragmented >= free else "segments"
        expandable = bool(view.snapshot.segments["expandable"].any())
        key = f"{cause}, expandable" if expandable else cause
        from ._minor import room

        enough = room(view, row["device"])
        finding = self.finding(
            f"{size(free)} of {size(row['reserved'])} reserved are free at the fullest"
            f" moment, in {counted(blocks.height, 'block')} of at most"
            f" {size(int(str(blocks['size'].max())))}",
            subject=cause,
            place=_holder(view, row) if cause == "fragmented" else NOWHERE,
            cost_bytes=free,
            evidence=[
                Evidence(
                    "held",
                    value=row["allocated"],
                    unit="bytes",
                    note="by tensors at that moment",
                ),
                Evidence(
                    "free",
                    value=fragmented,
                    unit="bytes",
                    note="fragmented: in segments with live tensors",
                ),
                Evidence(
                    "free",
                    value=free - fragmented,
                    unit="bytes",
                    note="in segments that are free as a whole",
                ),
            ],
            data={
                "device": row["device"],
                "reserved_bytes": row["reserved"],
                "allocated_bytes": row["allocated"],
                "free_bytes": free,
                "fragmented_bytes": fragmented,
                "free_blocks": blocks.height,
            },
            advice=_ADVICE.get(key, _ADVICE[cause]),
            severity=Severity.info if enough else Severity.warning,
        )
        return replace(finding, minor=enough)


def _holder(view: SnapshotView, row: dict[str, Any]) -> Place:
    """Return the line whose tensors have the most free memory in their segments."""
    from traceq.analysis.memory import fragmentation

    held = fragmentation.holders(view, row["device"], row["event"]).drop_nulls("file")
    most = held.sort(-pl.col("fragmented"), "file", "line").to_dicts()
    return view.place(most[0]) if most else NOWHERE
