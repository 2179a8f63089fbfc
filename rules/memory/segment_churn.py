"""MEM005: the allocator gives memory back to the driver and takes it anew each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.memory.fragmentation import emptied_by, segment_churn
from traceq.lint import NOWHERE, Bad, Good, Need, Rule, option
from traceq.words import size, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding, SnapshotView

_ADVICE = {
    "empty_cache": "remove torch.cuda.empty_cache() from the loop: the next step takes"
    " the same memory again, and waits for the GPU each time",
    "graphs": "a CUDA graph that is recorded empties the cache first: record each graph"
    " once, before the loop, with as few shapes as possible",
    "": "memory is so full that the allocator gives some back to find room for more:"
    " use less (smaller batch, checkpointing), give all steps the same shapes, or set"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
}


@dataclass(frozen=True)
class SegmentChurn(Rule):
    """The allocator gives memory back to the driver and takes it anew in most steps.

    ## What it does

    Looks for steps in which segments are both freed and allocated (or unmapped and
    mapped, with expandable segments), and reports them if they are most of the steps.

    ## Why is this bad?

    The allocator keeps freed memory so that a steady step needs nothing of the driver.
    ``cudaFree`` waits for all work of the GPU, ``cudaMalloc`` takes up to milliseconds.

    ## How to fix it

    If the program empties the cache itself: do not. If memory is full: use less of it,
    or let segments expand. If graphs are recorded: record them once.

    ## When it is wrong

    In the first steps of a run the allocator still finds its segments: record later
    ones.
    """

    code = "MEM005"
    since = "0.1.0"
    needs = frozenset({Need.SNAPSHOT, Need.HISTORY, Need.MEMORY_STEPS})
    priced = False

    min_mib: int = option(2, "Less than this a step is not reported.")

    examples = (
        Bad(
            "",
            history="""
            region             [ProfilerStep#1  ][ProfilerStep#2  ]
            segment             [64M          ]   [64M          ]
            train.py:9 step      [64M        ]     [64M        ]
            """,
            finds=(
                "each step gives 64.0 MiB back to the driver and takes 64.0 MiB anew",
            ),
        ),
        Good(
            "",
            history="""
            region             [ProfilerStep#1  ][ProfilerStep#2  ]
            segment             [64M
            train.py:9 step      [64M        ]     [64M        ]
            """,
        ),
    )

    def check_snapshot(self, view: SnapshotView) -> Iterator[Finding]:
        """Average over the steps that both take and give back."""
        churn = segment_churn(view.snapshot, view.phases)
        least = pl.min_horizontal("taken", "given") >= self.min_mib << 20
        for (device,), steps in churn.filter(least).group_by(
            "device", maintain_order=True
        ):
            if 2 * steps.height > view.steps:
                yield self._finding(view, steps, int(str(device)))

    def _finding(self, view: SnapshotView, steps: pl.DataFrame, device: int) -> Finding:
        mean: dict[str, Any]
        mean = steps.select(pl.col("taken", "given", "takes", "gives").mean()).row(
            0, named=True
        )
        givers = steps["giver"].drop_nulls().mode().sort().to_list()
        cause = emptied_by(view.snapshot, givers[0]) if givers else ""
        where = view.sources.filter(pl.col("stack").is_in(givers[:1])).to_dicts()
        return self.finding(
            f"each step gives {size(mean['given'])} back to the driver and takes"
            f" {size(mean['taken'])} anew",
            subject=cause or "full",
            place=view.place(where[0]) if where else NOWHERE,
            count=mean["gives"],
            evidence=[
                (
                    "calls",
                    f"memory is given back {times(round(mean['gives']))} and taken"
                    f" {times(round(mean['takes']))} a step",
                ),
                *(view.lines(where[0])[:1] if where else ()),
            ],
            data={
                "device": device,
                "cause": cause or "full",
                "steps": steps.height,
                "given_bytes": round(mean["given"]),
                "taken_bytes": round(mean["taken"]),
            },
            advice=_ADVICE[cause],
        )
