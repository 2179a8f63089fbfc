"""MEM004: far more memory is reserved than tensors ever hold at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.memory.fragmentation import DEFAULT_POOL, free_pieces, fullest
from traceq.analysis.memory.oom import holders
from traceq.lint import NOWHERE, Bad, Good, Need, Rule, option
from traceq.words import counted, share, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding, SnapshotView

_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_ADVICE = {
    "pieces": f"set {_EXPANDABLE}: segments then grow and shrink by pages, and free"
    " pieces of any size are of use; or allocate what lives long before the rest",
    "pieces of growing segments": "allocate what lives long before the rest, so that it"
    " does not lie in between; give all steps the same shapes",
    "segments": "whole segments are free, of sizes that nothing asks for any more: give"
    " all steps the same shapes (pad to a few fixed sizes), call"
    " torch.cuda.empty_cache() once after what needed them (warm-up, validation), or"
    f" set {_EXPANDABLE}",
}


@dataclass(frozen=True)
class UnusedReservation(Rule):
    """Far more memory is reserved than tensors ever hold at once.

    ## What it does

    Takes the moment at which the most is reserved from the device, and of such moments
    the one at which tensors hold the most. What is free then, outside of the pools of
    CUDA graphs, was of no use in all of the recorded history.

    ## Why is this bad?

    Nobody else can have it: not NCCL, not another process, and not this program, if it
    lies in pieces. It runs out of memory while much of it is free.

    ## How to fix it

    If free pieces lie between tensors: ``expandable_segments:True``. If whole segments
    are free, something earlier needed other sizes: the same shapes in all steps, or
    ``torch.cuda.empty_cache()`` once after it.

    ## When it is wrong

    What needs the memory may lie outside of the history, as a validation every thousand
    steps. Histories that allocate less than what is free are not looked at.
    """

    code = "MEM004"
    since = "0.1.0"
    needs = frozenset({Need.SNAPSHOT, Need.HISTORY})

    min_share: float = option(0.25, "A smaller part of what is reserved may be free.")
    min_mib: int = option(64, "Less than this may be free.")

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
                "80.0 MiB of 280 MiB reserved are free when most is needed, in 2 pieces"
                " of at most 40.0 MiB",
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
        """Look at each device when the most was reserved."""
        for row in fullest(view.curve).iter_rows(named=True):
            device, event = row["device"], row["event"]
            pool = pl.col("pool").cast(pl.String).fill_null(DEFAULT_POOL)
            pieces = free_pieces(view.snapshot, view.allocations, event).filter(
                pl.col("device") == device, pool == DEFAULT_POOL
            )
            free = int(pieces["size"].sum())
            asked = view.snapshot.events.filter(
                pl.col("device") == device, pl.col("action") == "alloc"
            )["size"].sum()
            if (
                free >= self.min_share * row["reserved"]
                and free >= self.min_mib << 20
                and asked >= free
            ):
                yield self._finding(view, row, pieces, free)

    def _finding(
        self,
        view: SnapshotView,
        row: dict[str, int],
        pieces: pl.DataFrame,
        free: int,
    ) -> Finding:
        between = pieces.filter(pl.col("held") > 0)
        whole = free - int(between["size"].sum())
        expandable = bool(view.snapshot.segments["expandable"].any())
        cause = "segments" if 2 * whole > free else "pieces"
        held = holders(view.snapshot, view.allocations, row["device"], row["event"])
        beside = held.filter(pl.col("file").is_not_null()).sort(
            "beside", "file", "line", descending=[True, False, False]
        )
        first = beside.row(0, named=True) if beside.height else None
        largest = size(int(str(pieces["size"].max())))
        return self.finding(
            f"{size(free)} of {size(row['reserved'])} reserved are free when most is"
            f" needed, in {counted(pieces.height, 'piece')} of at most {largest}",
            subject=cause,
            place=view.place(first) if first and cause == "pieces" else NOWHERE,
            cost_bytes=free,
            evidence=[
                ("held", f"{size(row['allocated'])} by tensors at that moment"),
                (
                    "between",
                    f"{size(free - whole)} lie between tensors"
                    f" ({share(free - whole, free)}), {size(whole)} in segments that"
                    " are free as a whole",
                ),
            ],
            data={
                "device": row["device"],
                "reserved_bytes": row["reserved"],
                "allocated_bytes": row["allocated"],
                "free_bytes": free,
                "free_between_bytes": free - whole,
                "pieces": pieces.height,
            },
            advice=_ADVICE[
                "pieces of growing segments"
                if expandable and cause == "pieces"
                else cause
            ],
        )
