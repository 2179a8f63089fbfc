"""DAT001: the GPU idles while the next batch is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import callers
from traceq.analysis.base.gpu_idle import busy_spans
from traceq.linter import (
    END,
    NOWHERE,
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Place,
    Rule,
    Seen,
    Severity,
    View,
    at_function,
    counted,
    dataclass,
    disjoint,
    named_like,
    option,
    overlap,
    text,
)
from traceq.model import names

from ._rows import RowByRow
from ._workers import WorkerPlan, waited_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

_IN_PROCESS = "_SingleProcessDataLoaderIter"
_IN_WORKERS = "_MultiProcessingDataLoaderIter"
# Torch's iterators of a DataLoader: who loads the batch, and what to do about it.
_LOADERS = {
    _IN_PROCESS: (
        "the GPU idles while the training process itself loads the next batch"
        " (num_workers=0)",
        "",
    ),
    _IN_WORKERS: (
        "the GPU idles while the program waits for the DataLoader's workers",
        "the workers do not keep up: raise num_workers{to}, up to the number of cores;"
        " raise prefetch_factor if only some batches are slow; set"
        " persistent_workers=True if it is the start of an epoch; or do less per sample"
        " (decode and augment on the GPU, cache what is computed every time)",
    ),
}
_TAKING = (
    "with pin_memory=True a thread takes batches ahead; or collate a batch into fewer"
    " tensors, as the program maps the memory of each"
)
# The same where the program does not wait for them, and where it may not.
_READY = (
    "the GPU idles while the program takes a batch that is ready from the DataLoader's"
    " workers",
    f"more workers do not help: {_TAKING}",
)
# A DataLoader keeps two batches ahead for each worker, so that in fewer steps than
# these some are ready whether the workers keep up or not. Judgement.
_LONG = 20
_READY_FOR_NOW = (
    "a DataLoader keeps batches ahead, so that a few steps do not show whether its"
    f" workers keep up: time the program with twice as many; {_TAKING}"
)
# Where loading takes less, nothing is promised: of five programs that load for 1 to 3
# ms two took 4% and 15% longer with two workers, pinned and persistent, and three took
# 22% to 28% less (H200, torch 2.11, 2026-11).
_SHORT_NS = 3_000_000
_SHORT = (
    "time the program with num_workers=2, pin_memory=True and persistent_workers=True:"
    " of five that load for as short a time three got faster and two slower; do less"
    " per sample, and index whole batches where the data is in memory"
)
_STACKS = "; record with stacks, profile(with_stack=True), to see what it does"
_EITHER = (
    "the GPU idles while the program takes a batch from the DataLoader's workers",
    "stacks tell which it is: where the workers do not keep up, raise num_workers;"
    f" where batches are ready, {_TAKING}",
)
# A batch was ready if less than this share of taking it was waiting. Judgement: of 2.5
# ms in which three tensors were taken it was 0.3%.
_WAITED = 0.25
# What a thread takes off the program of taking batches: while it runs Python it holds
# the program up. Judgement, not measured.
_THREAD = 0.5
# Without stacks workers do not keep up if it takes this many times as many. Judgement.
_CLEARLY = 1.2
# Fewer tensors in a batch are a few already.
_FEW = 4
# Handing tensors over is worth a word from this share of loading on. Judgement.
_MUCH = 0.25
# From this many times on the number of workers is said without a decimal. Judgement.
_SOME = 2
_OTHER = (
    "the GPU idles while the next batch is loaded",
    "load the next batch while the GPU computes: in worker processes or in a thread",
)


@dataclass(frozen=True)
class _Said:
    """What is said of a loader."""

    message: str
    advice: str
    goes: float | None = 1.0
    """The share of loading that a fix removes; None where nothing is promised."""
    evidence: tuple[Evidence, ...] = ()
    data: Mapping[str, int | None] | None = None
    example: str = ""


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

    Where stacks show that the loader does nothing but pick the rows of a
    ``TensorDataset`` one by one and stack them again, workers would do the same. With a
    ``BatchSampler`` as sampler, around the one that the loader has
    (``SequentialSampler`` without ``shuffle``, ``DistributedSampler`` with several
    ranks), each tensor is indexed once for a whole batch. If the tensors fit on the
    GPU, keep them there and index them with slices of ``torch.randperm``: nothing is
    loaded then. The saving is that of whole batches, which take what was measured on a
    machine without a GPU for each tensor, row and byte.

    ```diff
    - loader = DataLoader(data, batch_size=256, shuffle=True)
    + batches = BatchSampler(RandomSampler(data), 256, drop_last=False)
    + loader = DataLoader(data, sampler=batches, batch_size=None)
    ```

    The training process maps the memory of each tensor that a worker hands over, and
    stacks tell whether it did that or waited. For a batch of many small tensors that
    takes longer than loading them: put them into one. With ``pin_memory=True`` a thread
    does it ahead.

    ## When it is wrong

    Where loading takes less than 3 ms, nothing is promised of workers: some programs
    get faster with them and some slower. If the traced steps are the first of an epoch,
    the wait may be for the workers to start; later steps do not have it. Of taking
    batches that were ready half is assumed to go: a thread that does it shares Python's
    lock with the program. The tensors of a batch are counted by the copies to the GPU;
    a batch of Python objects hides more of them. A trainer that puts samplers of its
    own into a loader, as for several ranks, must leave the ``BatchSampler`` alone: look
    at the shapes of its batches.

    ## Measured

    On an H200, in ms a step. 8 workers instead of none: ``loader_alone`` 106.9 → 16.0.
    2 workers where loading took 1 to 3 ms: 17.3 → 18.0 and 17.9 → 20.7, so that such a
    finding is minor. 8 workers instead of 2 that had batches ready in the four steps
    that were recorded: 15.4 → 9.1, and 6.3 with ``pin_memory=True`` as well. 2 workers,
    pinned and persistent, where rows are loaded one by one, and what was predicted with
    stacks: an MLP with Lightning 13.3 → 9.7 (27%; 26% predicted), another 8.7 → 6.8
    (22%; 10%), texts 5.9 → 4.3 (27%; 27%), images as tensors 17.9 → 9.8 (45%; 45%), a
    BERT 13.8 → 11.7 (16%; 13%). Long waves: 12.3 → 9.1, and 5.0 with 4 workers, where
    5.9 was predicted with 2: their loading took 2.5 times as long while it was
    recorded. Whole batches of a table (``benchmarks/models/advice.py``): 3.3 → 1.8 and
    3.9 → 2.3, of a program like it 1.4 were predicted to go; the table on the GPU: 3.7
    → 1.9.
    """

    code = "DAT001"
    several_fixes = True
    since = "0.1.0"
    see = ("torch.utils.data.DataLoader",)
    needs = frozenset({Need.GPU})

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
        DAT001 input-pipeline-stall  saves 94.9 ms/step (85%), 66.4 ms to 106 ms
          the GPU idles while the training process itself loads the next batch
            (num_workers=0)
          in       loss (programs.py:557)
          region   enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ ×1
          idle     116 ms a step
          share    86% of the step
          steps    2 of 2
          loading  116 ms a step
          inside   __getitem__ (programs.py:537) 114 ms a step ×32
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
        found = view.annotations
        loads = named_like(view.trace.annotations, names.DATA_REGION)[found["id"]]
        found = found.filter(loads & ~found["on_gpu"])
        if not found.height:
            return
        regions = disjoint(found.with_columns(start="ts", end=END))
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
        if row["loader"] == _IN_PROCESS:
            said = self._in_process(view, regions)
        elif row["loader"] == _IN_WORKERS:
            said = self._in_workers(view, row, regions)
        else:
            said = _Said(*_OTHER)
        idle, loading = row["idle"] / view.steps, row["loading"] / view.steps
        stalled = row["idle"] / view.steady.time
        inside = callers.called_inside(view.trace.frames, regions).head(1)
        return self.finding(
            said.message,
            subject=row["loader"] or row["name"],
            place=_place(view, regions),
            count=row["calls"] / view.steps,
            fix=() if said.goes is None else Fix(spans=regions, host_share=said.goes),
            gpu_idle_ns=idle,
            evidence=[
                Evidence("region", row["name"], count=row["calls"] / view.steps),
                Evidence("idle", value=idle, unit="ns", note="a step"),
                Evidence("share", value=stalled, unit="share", note="of the step"),
                *_steps(view, row),
                Evidence("loading", value=loading, unit="ns", note="a step"),
                *(_inside(view, call) for call in inside.iter_rows(named=True)),
                *said.evidence,
            ],
            data={
                "region": row["name"],
                "idle_ns": round(idle),
                "loading_ns": round(loading),
                **(said.data or {}),
            },
            advice=said.advice,
            example=said.example,
            severity=Severity.info if said.goes is None else None,
            ops=view.ops.filter(pl.col("phase") == "data")["id"],
        )

    def _in_process(self, view: View, regions: pl.DataFrame) -> _Said:
        """Say what to do where the training process loads."""
        message = _LOADERS[_IN_PROCESS][0]
        if by_rows := RowByRow.of(view, regions):
            return _rows(by_rows, self.example(1))
        plan = WorkerPlan.of(view, regions, self.workers)
        if plan.loading_ns < _SHORT_NS:
            more = "" if view.trace.frames.height else _STACKS
            return _Said(message, _SHORT + more, goes=None)
        return _Said(
            message, _advice(plan), plan.share, tuple(_workers(plan)), plan.data
        )

    def _in_workers(
        self, view: View, row: Mapping[str, Any], regions: pl.DataFrame
    ) -> _Said:
        """Say what to do where workers load."""
        message, advice = _LOADERS[_IN_WORKERS]
        plan, goes = WorkerPlan.of(view, regions, self.workers), 1.0
        waited = waited_ns(view, regions)
        taken = _taken(row["loading"], waited, _times(view, plan))
        if taken:
            (message, advice), goes = taken, _THREAD
        if taken == _READY and view.steps < _LONG:
            advice = _READY_FOR_NOW
        advice = advice.replace("{to}", _more(view, plan))
        return _Said(message, advice, goes, tuple(_waits(view, waited)))


def _rows(found: RowByRow, example: str) -> _Said:
    """Say that rows are picked one by one, and that batches can be picked whole."""
    rows = counted(round(found.rows), "row")
    picked, stacked = found.picking_ns, found.stacking_ns
    return _Said(
        f"the GPU idles while the DataLoader picks {rows} a step out of a TensorDataset"
        " one by one, and stacks them",
        "pick whole batches: a BatchSampler as sampler and batch_size=None index each"
        " tensor once a batch; or keep the tensors on the GPU, if they fit, and index"
        " them with slices of torch.randperm",
        found.share,
        (
            Evidence("picking", value=picked, unit="ns", note="a step, as recorded"),
            Evidence("stacking", value=stacked, unit="ns", note="a step, as recorded"),
            Evidence(
                "whole",
                "batches:",
                value=found.whole_ns,
                unit="ns",
                note="a step, estimated",
            ),
        ),
        {"rows": round(found.rows), "whole_batches_ns": round(found.whole_ns)},
        example.replace("256", str(found.batch)),
    )


def _advice(plan: WorkerPlan) -> str:
    workers = plan.workers
    enough = workers >= plan.needed
    if plan.cores is None:
        cores = f" (check that the machine has {workers} cores)"
    else:
        cores = "" if enough else ", one for each core"
    text = (
        f"give the DataLoader num_workers={workers}{cores}, pin_memory=True and"
        " persistent_workers=True, so that batches are prepared while the GPU computes"
    )
    if not enough:
        text += (
            f"; it takes {plan.needed} workers to load as fast as the rest of the step"
            " goes: do less per sample too (decode and augment on the GPU, cache what"
            " is computed every time)"
        )
    if plan.handing_ns > _MUCH * plan.loading_ns and plan.tensors > _FEW:
        text += (
            f"; workers help little with {round(plan.tensors)} tensors in a batch, each"
            " of which the training process still maps: collate them into a few"
        )
    return text


def _taken(
    loading_ns: int, waited_ns: int | None, times: float
) -> tuple[str, str] | None:
    """Return what to say and to do if batches were ready, or may have been."""
    if waited_ns is None:
        return _EITHER if times < _CLEARLY else None
    return _READY if waited_ns < _WAITED * loading_ns else None


def _times(view: View, plan: WorkerPlan) -> float:
    """Return how many times as many workers it takes for the GPU not to wait."""
    now = view.bound.step_ns
    return now / plan.rest_ns if 0 < plan.rest_ns < now else 1.0


def _more(view: View, plan: WorkerPlan) -> str:
    """Say how many more workers there must be for the GPU not to wait for them."""
    times = _times(view, plan)
    if times < _CLEARLY:
        return ""
    # Of how well many workers share a machine the trace knows nothing.
    rounded = f"{times:.1f}" if times < _SOME else f"{round(times)}"
    return f" to about {rounded} times as many"


def _workers(plan: WorkerPlan) -> list[Evidence]:
    found = [
        Evidence(
            "workers",
            f"{plan.workers}:",
            value=plan.step_ns,
            unit="ns",
            note="a step, estimated",
        )
    ]
    if plan.needed > plan.workers:
        found.append(
            Evidence(
                "workers",
                f"{plan.needed}:",
                value=plan.rest_ns,
                unit="ns",
                note="a step, estimated",
            )
        )
    if plan.tensors:
        found.append(
            Evidence("tensors", value=round(plan.tensors), note="of a batch are copied")
        )
    return found


def _waits(view: View, waited_ns: int | None) -> list[Evidence]:
    if waited_ns is None:
        return []
    note = "a step until a batch was ready"
    return [Evidence("waits", value=waited_ns / view.steps, unit="ns", note=note)]


def _steps(view: View, row: Mapping[str, Any]) -> list[Evidence]:
    if not view.trace.steps.height:
        return []
    return [Evidence("steps", value=row["steps"], note=f"of {view.steps}")]


def _inside(view: View, call: Mapping[str, Any]) -> Evidence:
    return Evidence(
        "inside",
        at_function(call["file"], call["line"], call["function"]),
        value=call["time"] / view.steps,
        unit="ns",
        note="a step",
        count=call["calls"] / view.steps,
    )


def _place(view: View, regions: pl.DataFrame) -> Place:
    """Return the line that asks for the next batch."""
    found = callers.callers(view.trace.frames, regions.head(20))
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
