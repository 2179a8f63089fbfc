"""DAT001: the GPU has nothing to do while the next batch is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.callers import called_inside, callers
from traceq.analysis.base.gpu_idle import busy_spans
from traceq.intervals import disjoint, overlap
from traceq.lint import NOWHERE, Bad, Good, Need, Place, Rule, View, option
from traceq.model.names import DATA_REGION
from traceq.words import counted, share, time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.lint import Finding

_IN_PROCESS = "_SingleProcessDataLoaderIter"
# What to do is the same for all loaders of torch; who loads is not.
_SAID = {
    _IN_PROCESS: (
        "the GPU idles while the training process itself loads the next batch"
        " (num_workers=0)",
        "give the DataLoader num_workers=4 or more, pin_memory=True and"
        " persistent_workers=True: batches are then made while the GPU computes",
    ),
    "_MultiProcessingDataLoaderIter": (
        "the GPU idles while the program waits for the workers of the DataLoader",
        "the workers do not keep up: raise num_workers up to the cores there are,"
        " prefetch_factor where some batches take long, persistent_workers=True where"
        " it is the start of an epoch; or make a sample cheaper (decode and augment on"
        " the GPU, store what is computed anew every time)",
    ),
}
_OTHER = (
    "the GPU idles while the next batch is loaded",
    "load the next batch while the GPU computes: in worker processes or in a thread",
)


@dataclass(frozen=True)
class InputPipelineStall(Rule):
    """The GPU has nothing to do while the program loads the next batch.

    ## What it does

    Adds up the time in which a DataLoader is asked for the next batch (the regions
    ``enumerate(DataLoader)#…``, which torch names itself) and the GPU runs nothing.
    Loading while the GPU is busy with what was launched before costs nothing.

    ## Why is this bad?

    The GPU is the expensive part, and it waits for disks and for Python code that
    could have run at the same time, in other processes.

    ## How to fix it

    ``num_workers=0`` loads in the training process itself: give the DataLoader workers.
    If it has some, they do not keep up: give it more, let them prefetch more, keep
    them over epochs (``persistent_workers=True``), or make a sample cheaper.

    ## When it is wrong

    If the traced steps are the first ones of an epoch, the wait is that for the start
    of the workers, which the steps after them do not have.
    """

    code = "DAT001"
    needs = frozenset({Need.GPU})

    min_share: float = option(0.03, "Shares of the step below this are not reported.")

    examples = (
        Bad(
            """
            host  [ProfilerStep#1                                                                            ]
            host   [enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__]
            host                                                                [aten::mm            ]
            host                                                                 [cudaLaunchKernel>1]
            gpu 7                                                                      [gemm<1              ]
            """,  # noqa: E501 - the name of the region is this long
            finds=(_SAID[_IN_PROCESS][0],),
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
        """Group the regions by loader, and count the time without GPU work in them."""
        regions = view.annotations.filter(
            ~pl.col("on_gpu"), pl.col("name").cast(pl.String).str.contains(DATA_REGION)
        ).with_columns(start="ts", end=pl.col("ts") + pl.col("dur"))
        regions = disjoint(regions)
        busy = overlap(regions, busy_spans(view.trace.kernels))
        stalls = (
            regions.with_columns(idle=pl.col("end") - pl.col("start") - busy)
            .with_columns(loader=pl.col("name").cast(pl.String).str.extract(r"#(\w+)"))
            .group_by("name", "loader")
            .agg(
                pl.len(),
                pl.col("idle").sum(),
                loading=(pl.col("end") - pl.col("start")).sum(),
                steps=pl.col("step").filter(pl.col("idle") > 0).n_unique(),
            )
        )
        for row in stalls.iter_rows(named=True):
            if row["idle"] >= self.min_share * view.steady.time:
                mine = regions.filter(pl.col("name") == row["name"])
                yield self._said(view, row, mine)

    def _said(
        self, view: View, row: Mapping[str, Any], regions: pl.DataFrame
    ) -> Finding:
        message, advice = _SAID.get(row["loader"], _OTHER)
        idle = row["idle"] / view.steps
        of_step = share(row["idle"], view.steady.time)
        evidence = [
            ("region", f"{row['name']} ×{row['len']}"),
            ("idle", f"{time(idle)} a step, {of_step} of it, in {_steps(view, row)}"),
            ("loading", f"{time(row['loading'] / view.steps)} a step"),
        ]
        inside = called_inside(view.trace.frames, regions).head(1)
        evidence += [
            ("inside", f"{file}:{line} {function} ×{calls}, {time(took / view.steps)}")
            for file, line, function, calls, took in inside.iter_rows()
        ]
        return self.finding(
            message,
            subject=row["loader"] or row["name"],
            place=_place(view, regions),
            count=row["len"] / view.steps,
            gpu_ns=idle,
            host_ns=row["loading"] / view.steps,
            evidence=evidence,
            data={
                "region": row["name"],
                "idle_ns": round(idle),
                "loading_ns": round(row["loading"] / view.steps),
            },
            advice=advice,
            ops=view.ops.filter(pl.col("phase") == "data")["id"],
            spans=regions,
        )


def _steps(view: View, row: Mapping[str, Any]) -> str:
    if not view.trace.steps.height:
        return "the whole trace"
    return f"{row['steps']} of {counted(view.steps, 'step')}"


def _place(view: View, regions: pl.DataFrame) -> Place:
    """Return the line that asks for the next batch."""
    found = callers(view.trace.frames, regions.head(20))
    if not found.height and not view.trace.frames.height:
        # Old traces give the callers of each op as text, and those of the ops that
        # load in the training process begin at the line that asks.
        found = (
            view.ops.filter(pl.col("phase") == "data", pl.col("file").is_not_null())
            .group_by("file", "line", "function")
            .len()
            .sort("len", "file", "line", "function", descending=[True, *[False] * 3])
        )
    return view.place(found.row(0, named=True)) if found.height else NOWHERE
