"""DAT002: the DataLoader starts its workers again in each epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import callers
from traceq.linter import (
    END,
    NOWHERE,
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    View,
    asof,
    counted,
    dataclass,
    disjoint,
    has_like,
    named_like,
    often,
    option,
)

from ._workers import called_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

_LOADER = r"^torch/utils/data/dataloader\.py\(\d+\): "
_BEGINS, _ENDS = rf"{_LOADER}_get_iterator$", rf"{_LOADER}_shutdown_workers$"
_MADE = rf"{_LOADER}__init__$"
_STARTS = r"^multiprocessing/process\.py\(\d+\): start$"
_KEEP = (
    "pass persistent_workers=True to the DataLoader, so that its workers stay for the"
    " next epoch"
)
_CHECK = (
    ": they keep their copy of the dataset, so check that nothing changes it between"
    " epochs; or let an epoch have more batches"
)
_MAKE_ONCE = "make the DataLoader once, before the loop over epochs, and "


@dataclass(frozen=True)
class WorkerRestart(Rule):
    """The DataLoader starts its worker processes again in each epoch.

    ## What it does

    Adds up the time in which the iterator of a DataLoader starts worker processes, and
    in which it ends them, as Python stacks show it. Waiting for the first batch of the
    new workers is left to DAT001.

    ## Why is this bad?

    To start a process takes 5 to 20 ms, and each worker of each epoch is one. Where an
    epoch has few batches, that is a large part of each step, and the GPU idles.

    ## How to fix it

    Keep the workers for the next epoch. They keep their copy of the dataset, too: what
    the program changes of it between epochs does not reach them.

    ```diff
    - loader = DataLoader(data, batch_size=512, num_workers=5)
    + loader = DataLoader(data, batch_size=512, num_workers=5, persistent_workers=True)
    ```

    Workers stay with their DataLoader: where the program makes a new one in each
    epoch, make it once, before the loop.

    ## When it is wrong

    The recorded steps may be the first of a long epoch. Where workers were started once
    and the step time without the profiler does not show that this is usual, nothing is
    reported.
    """

    code = "DAT002"
    effort = "edit"
    since = "0.2.0"
    see = ("torch.utils.data.DataLoader",)
    preview = True
    needs = frozenset({Need.GPU, Need.STACKS})

    min_share: float = option(
        0.01, "Starts and ends below this share of the step are not reported."
    )

    seen = Seen(
        text="""
        DAT002 worker-restart (preview)
          saves 42.3 µs/step (66%), 29.6 µs to 49.3 µs
          the DataLoader starts its workers again in each epoch, 2 processes in 2
            steps
          starts  once a step
          takes   52.0 µs a step, as recorded
          fix     pass persistent_workers=True to the DataLoader, so that its
                  workers stay for the next epoch: they keep their copy of the
                  dataset, so check that nothing changes it between epochs; or let
                  an epoch have more batches
        """,
    )

    examples = (
        Bad(
            """
            host  [ProfilerStep#1                                                               ][ProfilerStep#2                                                               ]
            host   [torch/utils/data/dataloader.py(428): _get_iterator] [cudaLaunchKernel>1]      [torch/utils/data/dataloader.py(428): _get_iterator] [cudaLaunchKernel>2]
            host    [multiprocessing/process.py(110): start]                                       [multiprocessing/process.py(110): start]
            gpu 7                                                              [gemm<1       ]                                                            [gemm<2       ]
            """,  # noqa: E501 - the names of the calls are this long
            finds=(
                "the DataLoader starts its workers again in each epoch,"
                " 2 processes in 2 steps"
            ),
        ),
        Good(
            """
            host  [ProfilerStep#1                                                ]
            host   [torch/utils/data/dataloader.py(7): _reset][cudaLaunchKernel>1]
            gpu 7                                                 [gemm<1       ]
            """
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Add up the calls that start and end workers."""
        frames = view.trace.frames
        if not has_like(frames, _STARTS):
            return
        calls = frames.filter(named_like(frames, f"{_BEGINS}|{_ENDS}|{_MADE}"))
        steps = view.steady.windows.select(step_start="start", step_end="end")
        calls = asof(calls, steps, "ts", "step_start").with_columns(start="ts", end=END)
        calls = calls.filter(pl.col("end") <= pl.col("step_end"))
        begins = calls.filter(named_like(calls, _BEGINS))
        starts = called_in(
            frames.filter(named_like(frames, _STARTS)).select("thread", "ts", "dur"),
            begins,
        )
        begins = begins.filter(pl.col("ts").is_in(starts["start"].implode()))
        spans = disjoint(pl.concat([begins, calls.filter(named_like(calls, _ENDS))]))
        total = int((spans["end"] - spans["start"]).sum())
        if not begins.height or total < self.min_share * view.steady.time:
            return
        made = calls.filter(named_like(calls, _MADE))
        outside = (
            made.height - called_in(made.select("thread", "ts", "dur"), begins).height
        )
        if begins.height == 1 and not _usual(view):
            return
        places = callers.callers(frames, begins.head(20))
        yield self.finding(
            "the DataLoader starts its workers again in each epoch,"
            f" {counted(starts.height, 'process')} in {counted(view.steps, 'step')}",
            subject="workers",
            place=view.place(places.row(0, named=True)) if places.height else NOWHERE,
            count=begins.height / view.steps,
            fix=Fix(spans=spans),
            evidence=[
                Evidence("starts", often(begins.height / view.steps)),
                Evidence(
                    "takes",
                    value=total / view.steps,
                    unit="ns",
                    note="a step, as recorded",
                ),
            ],
            data={"processes": starts.height, "epochs": begins.height},
            advice=(_MAKE_ONCE if outside > 0 else "") + _KEEP + _CHECK,
        )


def _usual(view: View) -> bool:
    """Return whether steps without the profiler are as long as those with a start.

    Workers were started once: at the beginning of one of many short epochs, or of a
    long one, whose other steps are what the program's steps usually take.
    """
    durations = view.steady.windows["end"] - view.steady.windows["start"]
    usual = durations.median()
    if view.step_ns is None or not isinstance(usual, float):
        return False
    return view.step_ns > (usual + view.steady.time / view.steps) / 2
