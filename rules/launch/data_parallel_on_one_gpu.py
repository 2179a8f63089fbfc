"""LCH005: nn.DataParallel around a model that runs on one GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import callers
from traceq.linter import (
    END,
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    View,
    asof,
    dataclass,
    has_like,
    named_like,
    often,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

_FILE = "torch/nn/parallel/data_parallel\\.py"
_FORWARD = f"{_FILE}.*: forward$"
_REPLICATES = "torch/nn/parallel/(replicate|parallel_apply)\\.py"
_MODULE = "^nn\\.Module: "
_WRAPPER = "torch/nn/parallel/data_parallel.py(173): forward"
_SCATTER = "torch/nn/parallel/scatter_gather.py(78): scatter_kwargs"


def _drawn(wrapper: str) -> str:
    inside = " " * (len(wrapper) + 2)
    return f"""
        host [ProfilerStep#1 {inside}                                     ]
        host  [train.py(3): main {inside}                                ]
        host   [{wrapper}                                              ]
        host     [{_SCATTER}] [nn.Module: Net_0]
        host      {" " * len(_SCATTER)}  [aten::mul  ]
        gpu 7     {" " * len(_SCATTER)}       [mul]
    """


@dataclass(frozen=True)
class DataParallelOnOneGpu(Rule):
    """nn.DataParallel goes through all parameters in each forward, for a single GPU.

    ## What it does

    Looks for calls of ``nn.DataParallel`` that never replicate the model, in a program
    whose kernels all run on one GPU. The fix removes the time until the wrapped model
    is called, less the copies of inputs from the host.

    ## Why is this bad?

    Before each call the wrapper looks at the device of each parameter and buffer, and
    scatters the inputs over its one GPU. Of a model with hundreds of parameters that
    takes the host a millisecond or more, in which nothing is launched.

    ## How to fix it

    ```diff
    - model = nn.DataParallel(model)
    + if torch.cuda.device_count() > 1:
    +     model = nn.DataParallel(model)
    ```

    Without the wrapper, send inputs to the GPU yourself. For several GPUs PyTorch
    recommends DistributedDataParallel.

    ## When it is wrong

    A checkpoint of the wrapped model has names that begin with ``module.``, which
    ``load_state_dict`` of the model itself does not know.
    """

    code = "LCH005"
    effort = "edit"
    preview = True
    since = "0.3.0"
    see = ("torch.nn.DataParallel",)
    needs = frozenset({Need.GPU, Need.OPS, Need.STACKS, Need.STEPS})

    seen = Seen(
        text="""
        LCH005 data-parallel-on-one-gpu (preview)
          saves 46.8 µs/step (58%), 32.8 µs to 60.0 µs
          nn.DataParallel prepares a forward once a step for one GPU
          in    main (train.py:3)
          host  60.0 µs a step, as recorded
          fix   call the model itself where torch.cuda.device_count() is 1; its
                state_dict has no "module." before the names
        """,
    )

    examples = (
        Bad(
            _drawn(_WRAPPER),
            finds="nn.DataParallel prepares a forward once a step for one GPU",
        ),
        Good(_drawn("train.py(9): forward" + " " * 30)),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Take the time from each call of the wrapper to that of the model in it."""
        frames = view.trace.frames
        if not has_like(frames, _FORWARD) or has_like(frames, _REPLICATES):
            return
        if view.trace.kernels["device"].n_unique() != 1:
            return
        spans = _before_copies(_preparing(frames), view.trace.runtime)
        windows = view.steady.windows
        spans = spans.filter(
            pl.col("start").is_between(windows["start"].min(), windows["end"].max())
        )
        if not spans.height:
            return
        around = callers.callers(frames, spans.rename({"start": "ts"}))
        count = spans.height / view.steps
        taken = (spans["end"] - spans["start"]).sum() / view.steps
        yield self.finding(
            f"nn.DataParallel prepares a forward {often(count)} for one GPU",
            subject="nn.DataParallel",
            place=view.place(around.row(0, named=True) if around.height else {}),
            count=count,
            fix=Fix(spans=spans.select("start", "end")),
            evidence=[
                Evidence("host", value=taken, unit="ns", note="a step, as recorded")
            ],
            advice="call the model itself where torch.cuda.device_count() is 1; its"
            ' state_dict has no "module." before the names',
        )


def _preparing(frames: pl.DataFrame) -> pl.DataFrame:
    """Return from when to when each call of the wrapper prepares that of the model."""
    wrappers = frames.filter(named_like(frames, _FORWARD))
    modules = frames.filter(named_like(frames, _MODULE))
    return asof(
        wrappers.select("thread", start="ts", until=END),
        modules.select("thread", end="ts"),
        "start",
        "end",
        by="thread",
        strategy="forward",
    ).filter(pl.col("end") < pl.col("until"))


def _before_copies(spans: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return spans up to the first copy in each: inputs are sent without it, too."""
    copies = calls.filter(named_like(calls, "^cudaMemcpy"))
    return asof(
        spans,
        copies.select("thread", copied="ts"),
        "start",
        "copied",
        by="thread",
        strategy="forward",
    ).with_columns(end=pl.min_horizontal("end", "copied"))
