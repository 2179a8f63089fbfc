"""MEM005: segments are freed to the driver and allocated again in steady steps."""

from __future__ import annotations

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
    dataclass,
    option,
    size,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, SnapshotView

_ADVICE = {
    "empty_cache": "remove torch.cuda.empty_cache() from the loop: the next step"
    " allocates the same memory again, and each call blocks until the GPU is idle",
    "graphs": "capturing a CUDA graph empties the cache first: capture each graph once,"
    " before the loop, with as few shapes as possible",
    "full": "memory is so full that the allocator frees cached blocks to find room: use"
    " less (smaller batch, activation checkpointing), give all steps the same shapes,"
    " or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
}


@dataclass(frozen=True)
class SegmentChurn(Rule):
    """Segments are freed to the driver and allocated again in most steps.

    ## What it does

    Looks for steps in which segments are both freed and allocated (with expandable
    segments: unmapped and mapped), and reports them if they are most of the steps.

    ## Why is this bad?

    The caching allocator keeps freed memory so that a steady step needs nothing from
    the driver. ``cudaFree`` blocks until the GPU has finished all its work, and
    ``cudaMalloc`` takes up to milliseconds.

    ## How to fix it

    If the program calls ``torch.cuda.empty_cache()``: remove it. If memory is full: use
    less of it, or set ``expandable_segments:True``. If CUDA graphs are captured:
    capture each of them once.

    ```diff
      for batch in loader:
          train(batch)
    -     torch.cuda.empty_cache()
    ```

    ## When it is wrong

    In the first steps of a run the allocator still fills its cache: record later ones.
    """

    code = "MEM005"
    several_fixes = True
    since = "0.1.0"
    see = ("PYTORCH_ALLOC_CONF", "torch.cuda.empty_cache")
    needs = frozenset({Need.SNAPSHOT, Need.HISTORY, Need.MEMORY_STEPS})
    priced = False

    min_mib: int = option(2, "A step that frees less than this is not reported.")

    seen = Seen(
        text="""
        MEM005 segment-churn
          each step frees 64.0 MiB to the driver and allocates 64.0 MiB again
          frees   1 a step
          allocs  1 a step
          fix     memory is so full that the allocator frees cached blocks to find
                  room: use less (smaller batch, activation checkpointing), give all
                  steps the same shapes, or set
                  PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
        """,
    )

    examples = (
        Bad(
            "",
            history="""
            region             [ProfilerStep#1  ][ProfilerStep#2  ]
            segment             [64M          ]   [64M          ]
            train.py:9 step      [64M        ]     [64M        ]
            """,
            finds=(
                "each step frees 64.0 MiB to the driver and allocates 64.0 MiB again",
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
        """Average over the steps that both free and allocate."""
        from traceq.analysis.memory import fragmentation

        churn = fragmentation.segment_churn(view)
        both = pl.min_horizontal("allocated", "freed") >= self.min_mib << 20
        groups = churn.filter(both).group_by("device", maintain_order=True)
        for (device,), steps in groups:
            if 2 * steps.height > view.steps:
                yield self._finding(view, steps, int(str(device)))

    def _finding(self, view: SnapshotView, steps: pl.DataFrame, device: int) -> Finding:
        from traceq.analysis.memory import fragmentation

        mean: dict[str, Any]
        mean = steps.select(pl.col("allocated", "freed", "allocs", "frees").mean()).row(
            0, named=True
        )
        freeing = steps["free_stack"].drop_nulls().mode().sort().to_list()[:1]
        cause = (
            fragmentation.emptied_by(view.snapshot, freeing[0]) if freeing else ""
        ) or "full"
        where = view.sources.filter(pl.col("stack").is_in(freeing)).to_dicts()
        return self.finding(
            f"each step frees {size(mean['freed'])} to the driver and allocates"
            f" {size(mean['allocated'])} again",
            subject=cause,
            place=view.place(where[0]) if where else NOWHERE,
            count=mean["frees"],
            evidence=[
                Evidence("frees", value=round(mean["frees"]), note="a step"),
                Evidence("allocs", value=round(mean["allocs"]), note="a step"),
                *(view.callers(where[0]) if where else ()),
            ],
            data={
                "device": device,
                "cause": cause,
                "steps": steps.height,
                "freed_bytes": round(mean["freed"]),
                "allocated_bytes": round(mean["allocated"]),
            },
            advice=_ADVICE[cause],
        )
