"""DAT001: the GPU idles while the next batch is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import callers
from traceq.analysis.base.gpu_idle import busy_spans
from traceq.linter import (
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    Severity,
    View,
    dataclass,
    option,
    overlap,
    text,
)

from ._in_process import IN_PROCESS
from ._stalls import (
    LOADERS,
    explanation,
    inside_line,
    loading_regions,
    place_of,
    stall_line,
    steps_line,
)
from ._without_gpu import LONG_WITHOUT_GPU_NS, loading_without_gpu

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

_LOADER = text("name").str.extract(r"#(\w+)").alias("loader")
_A_STEP = "a step, as recorded"


@dataclass(frozen=True)
class InputPipelineStall(Rule):
    """The GPU idles while the program loads the next batch.

    ## What it does

    Adds up the time in which the program asks a DataLoader for the next batch (torch
    records it as ``enumerate(DataLoader)#…``) and the GPU runs nothing. Loading while
    the GPU is still busy with earlier launches costs nothing.

    ## Why is this bad?

    The GPU, the expensive part, waits for disks and for Python code that could have run
    at the same time in other processes.

    ## How to fix it

    With ``num_workers=0`` the training process itself loads: give the DataLoader
    workers, as many as loading takes longer than the rest of the step. A worker takes
    1.3 times as long for a batch. With fewer, a step takes as long as that divided by
    the number of workers, and that is what the saving is computed from: for the workers
    that are needed, or as many as there are cores (a run folder of ``traceq collect``
    has their number), or as many as the option says. If the loader has workers that the
    program waits for, they do not keep up: use more of them, let them prefetch more,
    keep them across epochs (``persistent_workers=True``), or do less per sample.

    ```diff
    - loader = DataLoader(data, batch_size=64)
    + loader = DataLoader(data, batch_size=64, num_workers=8, persistent_workers=True)
    ```

    Where stacks show that the loader does little but pick rows one by one, of a
    ``TensorDataset`` or as samples that cost less to make than to stack, and stack
    them, workers would do the same. With a ``BatchSampler`` as sampler, around the one
    that the loader has (``SequentialSampler`` without ``shuffle``,
    ``DistributedSampler`` with several ranks), each tensor is indexed once a batch. If
    the tensors fit on the GPU, keep them there and index them with slices of
    ``torch.randperm``. The saving is that of whole batches, which take what was
    measured on a machine without a GPU for each tensor, row and byte.

    ```diff
    - loader = DataLoader(data, batch_size=256, shuffle=True)
    + batches = BatchSampler(RandomSampler(data), 256, drop_last=False)
    + loader = DataLoader(data, sampler=batches, batch_size=None)
    ```

    The training process maps the memory of each tensor that a worker hands over, and
    stacks tell whether it did that or waited. Put many small tensors into a few: the
    saving is that of four. With ``pin_memory=True`` a thread maps them ahead.

    ## When it is wrong

    Where loading takes less than 3 ms, nothing is promised of workers: some programs
    get faster with them and some slower. If the traced steps are the first of an epoch,
    the wait may be for the workers to start; later steps do not have it. Of taking
    batches that were ready half is assumed to go: a thread that does it shares Python's
    lock with the program. The tensors of a batch are counted by the copies to the GPU;
    a batch of Python objects hides more. A trainer that puts samplers of its own into a
    loader, as for several ranks, must leave the ``BatchSampler`` alone: look at shapes.
    """

    code = "DAT001"
    several_fixes = True
    since = "0.1.0"
    see = ("torch.utils.data.DataLoader",)
    needs = frozenset({Need.GPU})
    without_gpu = True

    min_share: float = option(
        0.03, "Stalls below this share of the step are not reported."
    )
    workers: int = option(
        0,
        "Workers to predict the step for; 0 for as many as needed and there are cores.",
    )

    seen = Seen(
        of="benchmarks/models/loader_alone.trace.json.gz",
        text="""
        DAT001 input-pipeline-stall  saves 94.9 ms/step (85%), 66.4 ms to 103 ms
          the GPU idles while the training process itself loads the next batch
            (num_workers=0)
          in       loss (programs.py:557)
          region   enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ ×1
          idle     116 ms a step, as recorded
          share    86% of the step
          steps    2 of 2
          loading  116 ms a step, as recorded
          inside   __getitem__ (programs.py:537) 114 ms a step, as recorded ×32
          workers  8: 16.8 ms a step, estimated
          workers  16: 8.53 ms a step, estimated
          tensors  1 of a batch are copied
          fix      give the DataLoader num_workers=8 (check that the machine has 8
                   cores), pin_memory=True and persistent_workers=True, so that
                   batches are prepared while the GPU computes; it takes 16 workers
                   to load as fast as the rest of the step goes: do less per sample
                   too (decode and augment on the GPU, cache what is computed every
                   time)
        """,
    )

    examples = (
        Bad(
            """
            host  [ProfilerStep#1                                                                            ]
            host   [enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__]
            host                                                                [aten::mm            ]
            host                                                                 [cudaLaunchKernel>1]
            gpu 7                                                                      [gemm<1              ]
            """,  # noqa: E501 - the name of the region is this long
            finds=(LOADERS[IN_PROCESS][0],),
        ),
        Good(
            """
            host  [ProfilerStep#1                                                                            ]
            host  [aten::mm            ]
            host   [cudaLaunchKernel>1]
            host                         [enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__]
            gpu 7             [gemm<1                                                                        ]
            """  # noqa: E501 - the name of the region is this long
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the regions by loader, and add up the GPU's idle time in them."""
        regions = loading_regions(view)
        if not regions.height:
            return
        busy = overlap(regions, busy_spans(view.trace.kernels))
        loading = pl.col("end") - pl.col("start")
        stalls = (
            regions.with_columns(loading=loading, idle=loading - busy)
            .group_by(text("name"), _LOADER)
            .agg(
                pl.col("idle", "loading").sum(),
                calls=pl.len(),
                steps=pl.col("step").filter(pl.col("idle") > 0).n_unique(),
            )
        )
        for row in stalls.iter_rows(named=True):
            if row["idle"] >= self.min_share * view.steady.time:
                mine = regions.filter(text("name") == row["name"])
                yield self._finding(view, row, mine)

    def check_without_gpu(self, view: View) -> Iterator[Finding]:
        """Return where the training process itself loads, if that takes long."""
        # Workers share the cores with what computes here, and not on a GPU.
        in_process = text("name").str.contains(f"#{IN_PROCESS}", literal=True)
        regions = loading_regions(view).filter(in_process)
        least = self.min_share * view.steady.time
        for (name,), mine in regions.group_by(text("name"), maintain_order=True):
            loading = int((mine["end"] - mine["start"]).sum()) / view.steps
            if loading < LONG_WITHOUT_GPU_NS and loading * view.steps < least:
                continue
            why = loading_without_gpu(view, mine, self.example(1))
            yield self.finding(
                why.message,
                subject=IN_PROCESS,
                place=place_of(view, mine),
                count=mine.height / view.steps,
                evidence=why.evidence,
                data={"region": str(name), "loading_ns": round(loading)},
                advice=why.advice,
                example=why.example,
                ops=view.ops.filter(pl.col("phase") == "data")["id"],
            )

    def _finding(
        self, view: View, row: Mapping[str, Any], regions: pl.DataFrame
    ) -> Finding:
        why = explanation(view, row, regions, self.workers, self.example(1))
        idle, loading = row["idle"] / view.steps, row["loading"] / view.steps
        stalled = row["idle"] / view.steady.time
        inside = callers.called_inside(view.trace.frames, regions).head(1)
        return self.finding(
            why.message,
            subject=row["loader"] or row["name"],
            place=place_of(view, regions),
            count=row["calls"] / view.steps,
            fix=() if why.goes is None else Fix(spans=regions, host_share=why.goes),
            gpu_idle_ns=idle,
            evidence=[
                Evidence("region", row["name"], count=row["calls"] / view.steps),
                Evidence("idle", value=idle, unit="ns", note=_A_STEP),
                Evidence("share", value=stalled, unit="share", note="of the step"),
                *steps_line(view, row),
                Evidence("loading", value=loading, unit="ns", note=_A_STEP),
                *stall_line(view, regions),
                *(inside_line(view, call) for call in inside.iter_rows(named=True)),
                *why.evidence,
            ],
            data={
                "region": row["name"],
                "idle_ns": round(idle),
                "loading_ns": round(loading),
            }
            | dict(why.data or {}),
            advice=why.advice,
            example=why.example,
            severity=Severity.info if why.goes is None else None,
            ops=view.ops.filter(pl.col("phase") == "data")["id"],
        )
