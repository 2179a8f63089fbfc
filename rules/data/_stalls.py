"""Stalls of the input pipeline: where batches are loaded, and what to change."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import callers
from traceq.linter import (
    END,
    NOWHERE,
    Evidence,
    Place,
    View,
    at_function,
    counted,
    dataclass,
    disjoint,
    named_like,
)
from traceq.model import names

from ._rows import RowByRow
from ._workers import WorkerPlan, waited_ns

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

IN_PROCESS = "_SingleProcessDataLoaderIter"
_IN_WORKERS = "_MultiProcessingDataLoaderIter"
# Torch's iterators of a DataLoader: who loads the batch, and what to do about it.
LOADERS = {
    IN_PROCESS: (
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
# these some are ready whether the workers keep up or not. Heuristic threshold.
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
# A batch was ready if less than this fraction of taking it was waiting. Heuristic
# threshold: three tensors were taken in 2.5 ms, of which 0.3% was waiting.
_WAITED = 0.25
# The fraction of taking batches that a thread takes off the program: while it runs
# Python, it holds the GIL. Heuristic, not measured.
_THREAD = 0.5
# Without stacks, workers do not keep up if loading needs this many times as many of
# them. Heuristic threshold.
_CLEARLY = 1.2
# Fewer tensors in a batch are a few already.
_FEW = 4
# Handing tensors over is reported from this fraction of the loading time on. Heuristic
# threshold.
_MUCH = 0.25
# From this factor on the number of workers is written without a decimal. Heuristic
# threshold.
_SOME = 2
ROW_ADVICE = (
    "pick whole batches: a BatchSampler as sampler and batch_size=None index each"
    " tensor once a batch; or keep the tensors on the GPU, if they fit, and index"
    " them with slices of torch.randperm"
)
_OTHER = (
    "the GPU idles while the next batch is loaded",
    "load the next batch while the GPU computes: in worker processes or in a thread",
)


@dataclass(frozen=True)
class Explanation:
    """Message, advice and evidence for one loader."""

    message: str
    advice: str
    goes: float | None = 1.0
    """The share of loading that a fix removes; None where nothing is promised."""
    evidence: tuple[Evidence, ...] = ()
    data: Mapping[str, int | None] | None = None
    example: str = ""


def explanation(
    view: View,
    row: Mapping[str, Any],
    regions: pl.DataFrame,
    workers: int,
    example: str,
) -> Explanation:
    """Return why a loader stalls, and what to do, by the process that loads."""
    if row["loader"] == IN_PROCESS:
        return _in_process(view, regions, workers, example)
    if row["loader"] == _IN_WORKERS:
        return _in_workers(view, row, regions, workers)
    return Explanation(*_OTHER)


def _in_process(
    view: View, regions: pl.DataFrame, workers: int, example: str
) -> Explanation:
    """Say what to do where the training process loads."""
    message = LOADERS[IN_PROCESS][0]
    if by_rows := RowByRow.of(view, regions):
        return _rows(by_rows, example)
    plan = WorkerPlan.of(view, regions, workers)
    if plan.loading_ns < _SHORT_NS:
        more = "" if view.trace.frames.height else _STACKS
        unknown = {"workers_now": 0, "workers": 2, "saves_with_workers_ns": None}
        return Explanation(message, _SHORT + more, goes=None, data=unknown)
    return Explanation(
        message, _advice(plan), plan.share, tuple(_workers(plan)), plan.data
    )


def _in_workers(
    view: View, row: Mapping[str, Any], regions: pl.DataFrame, workers: int
) -> Explanation:
    """Say what to do where workers load."""
    message, advice = LOADERS[_IN_WORKERS]
    plan, goes = WorkerPlan.of(view, regions, workers), 1.0
    waited = waited_ns(view, regions)
    taken = _taken(row["loading"], waited, _times(view, plan))
    if taken:
        (message, advice), goes = taken, _THREAD
    if taken == _READY and view.steps < _LONG:
        advice = _READY_FOR_NOW
    advice = advice.replace("{to}", _more(view, plan))
    return Explanation(message, advice, goes, tuple(_waits(view, waited)))


def _rows(loads: RowByRow, example: str) -> Explanation:
    """Say that rows are picked one by one, and that batches can be picked whole."""
    rows = counted(round(loads.rows), "row")
    picked, stacked = loads.picking_ns, loads.stacking_ns
    return Explanation(
        f"the GPU idles while the DataLoader picks {rows} a step out of a TensorDataset"
        " one by one, and stacks them",
        ROW_ADVICE,
        loads.share,
        (
            Evidence("picking", value=picked, unit="ns", note="a step, as recorded"),
            Evidence("stacking", value=stacked, unit="ns", note="a step, as recorded"),
            Evidence(
                "whole",
                "batches:",
                value=loads.whole_ns,
                unit="ns",
                note="a step, estimated",
            ),
        ),
        {"rows": round(loads.rows), "whole_batches_ns": round(loads.whole_ns)},
        example.replace("256", str(loads.batch)),
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
    rounded = ceil(2 * times) / 2 if times < _SOME else round(times)
    return f" to about {rounded:g} times as many"


def _workers(plan: WorkerPlan) -> list[Evidence]:
    reasons = [
        Evidence(
            "workers",
            f"{plan.workers}:",
            value=plan.step_ns,
            unit="ns",
            note="a step, estimated",
        )
    ]
    if plan.needed > plan.workers:
        reasons.append(
            Evidence(
                "workers",
                f"{plan.needed}:",
                value=plan.rest_ns,
                unit="ns",
                note="a step, estimated",
            )
        )
    if plan.tensors:
        reasons.append(
            Evidence("tensors", value=round(plan.tensors), note="of a batch are copied")
        )
    return reasons


def _waits(view: View, waited_ns: int | None) -> list[Evidence]:
    if waited_ns is None:
        return []
    note = "a step until a batch was ready, as recorded"
    return [Evidence("waits", value=waited_ns / view.steps, unit="ns", note=note)]


def steps_line(view: View, row: Mapping[str, Any]) -> list[Evidence]:
    if not view.trace.steps.height:
        return []
    return [Evidence("steps", value=row["steps"], note=f"of {view.steps}")]


def inside_line(view: View, call: Mapping[str, Any]) -> Evidence:
    return Evidence(
        "inside",
        at_function(call["file"], call["line"], call["function"]),
        value=call["time"] / view.steps,
        unit="ns",
        note="a step, as recorded",
        count=call["calls"] / view.steps,
    )


def loading_regions(view: View) -> pl.DataFrame:
    """Return the regions of the steps in which batches are loaded, with their spans."""
    regions = view.annotations
    loads = named_like(view.trace.annotations, names.DATA_REGION)[regions["id"]]
    regions = regions.filter(loads & ~regions["on_gpu"])
    return disjoint(regions.with_columns(start="ts", end=END))


def place_of(view: View, regions: pl.DataFrame) -> Place:
    """Return the line that asks for the next batch."""
    callers_of_region = callers.callers(view.trace.frames, regions.head(20))
    if not callers_of_region.height and not view.trace.frames.height:
        # Old traces have the call stack of each op as text. That of an op that loads
        # in the training process begins at the line that asks for the batch.
        callers_of_region = (
            view.ops.filter(pl.col("phase") == "data", pl.col("file").is_not_null())
            .group_by("file", "line", "function")
            .len()
            .sort("len", "file", "line", "function", descending=[True, *[False] * 3])
        )
    return (
        view.place(callers_of_region.row(0, named=True))
        if callers_of_region.height
        else NOWHERE
    )
