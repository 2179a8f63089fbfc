"""DAT001: the GPU idles while the next batch is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.callers import called_inside, callers
from traceq.analysis.base.gpu_idle import busy_spans
from traceq.expressions import END, text
from traceq.intervals import disjoint, overlap
from traceq.lint import (
    NOWHERE,
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Place,
    Rule,
    View,
    option,
)
from traceq.model.names import DATA_REGION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.lint import Finding

_IN_PROCESS = "_SingleProcessDataLoaderIter"
# Torch's iterators of a DataLoader: who loads the batch, and what to do about it.
_LOADERS = {
    _IN_PROCESS: (
        "the GPU idles while the training process itself loads the next batch"
        " (num_workers=0)",
        "give the DataLoader num_workers=4 or more, pin_memory=True and"
        " persistent_workers=True, so that batches are prepared while the GPU computes",
    ),
    "_MultiProcessingDataLoaderIter": (
        "the GPU idles while the program waits for the DataLoader's workers",
        "the workers do not keep up: raise num_workers, up to the number of cores;"
        " raise prefetch_factor if only some batches are slow; set"
        " persistent_workers=True if it is the start of an epoch; or do less per sample"
        " (decode and augment on the GPU, cache what is computed every time)",
    ),
}
_OTHER = (
    "the GPU idles while the next batch is loaded",
    "load the next batch while the GPU computes: in worker processes or in a thread",
)


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
    workers. If it has workers, they do not keep up: use more of them, let them prefetch
    more, keep them across epochs (``persistent_workers=True``), or do less per sample.

    ## When it is wrong

    If the traced steps are the first of an epoch, the wait may be for the workers to
    start; later steps do not have it.
    """

    code = "DAT001"
    since = "0.1.0"
    needs = frozenset({Need.GPU})

    min_share: float = option(
        0.03, "Stalls below this share of the step are not reported."
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
            finds=(_LOADERS[_IN_PROCESS][0],),
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
        regions = disjoint(
            view.annotations.filter(
                ~pl.col("on_gpu"), text("name").str.contains(DATA_REGION)
            ).with_columns(start="ts", end=END)
        )
        busy = overlap(regions, busy_spans(view.trace.kernels))
        loading = pl.col("end") - pl.col("start")
        stalls = (
            regions.with_columns(loading=loading, idle=loading - busy)
            .group_by(text("name"), loader=text("name").str.extract(r"#(\w+)"))
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

    def _finding(
        self, view: View, row: Mapping[str, Any], regions: pl.DataFrame
    ) -> Finding:
        message, advice = _LOADERS.get(row["loader"], _OTHER)
        idle, loading = row["idle"] / view.steps, row["loading"] / view.steps
        stalled = row["idle"] / view.steady.time
        inside = called_inside(view.trace.frames, regions).head(1)
        return self.finding(
            message,
            subject=row["loader"] or row["name"],
            place=_place(view, regions),
            count=row["calls"] / view.steps,
            fix=Fix(spans=regions),
            gpu_idle_ns=idle,
            evidence=[
                Evidence("region", row["name"], count=row["calls"] / view.steps),
                Evidence("idle", value=idle, unit="ns", note="a step"),
                Evidence("share", value=stalled, unit="share", note="of the step"),
                *_steps(view, row),
                Evidence("loading", value=loading, unit="ns", note="a step"),
                *(_inside(view, call) for call in inside.iter_rows(named=True)),
            ],
            data={
                "region": row["name"],
                "idle_ns": round(idle),
                "loading_ns": round(loading),
            },
            advice=advice,
            ops=view.ops.filter(pl.col("phase") == "data")["id"],
        )


def _steps(view: View, row: Mapping[str, Any]) -> list[Evidence]:
    if not view.trace.steps.height:
        return []
    return [Evidence("steps", value=row["steps"], note=f"of {view.steps}")]


def _inside(view: View, call: Mapping[str, Any]) -> Evidence:
    return Evidence(
        "inside",
        f"{call['file']}:{call['line']} {call['function']}",
        value=call["time"] / view.steps,
        unit="ns",
        note="a step",
        count=call["calls"] / view.steps,
    )


def _place(view: View, regions: pl.DataFrame) -> Place:
    """Return the line that asks for the next batch."""
    found = callers(view.trace.frames, regions.head(20))
    if not found.height and not view.trace.frames.height:
        # Old traces have the call stack of each op as text. That of an op that loads
        # in the training process begins at the line that asks for the batch.
        found = (
            view.ops.filter(pl.col("phase") == "data", pl.col("file").is_not_null())
            .group_by("file", "line", "function")
            .len()
            .sort("len", "file", "line", "function", descending=[True, *[False] * 3])
        )
    return view.place(found.row(0, named=True)) if found.height else NOWHERE
