"""Loading in the training process itself: what it does, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.linter import Evidence, counted, dataclass

from ._loading_kinds import LoadingKind
from ._rows import RowByRow
from ._samples import CheapSamples
from ._worker_advice import (
    FEW_TENSORS,
    collate_into_few,
    hands_much,
    worker_evidence,
    workers_advice,
)
from ._workers import WorkerPlan, first_batches, step_without

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

    from traceq.linter import View

IN_PROCESS = "_SingleProcessDataLoaderIter"
MESSAGE = (
    "the GPU idles while the training process itself loads the next batch"
    " (num_workers=0)"
)
_NO_AHEAD = (
    "no worker loads the first batch of an epoch ahead, and epochs have few, so that"
    " num_workers=2, pin_memory=True and persistent_workers=True hide only the others"
)
_SHORT_EPOCHS = (
    "keep the batches of an epoch, on the GPU if they fit, where nothing shuffles or"
    f" changes them: then nothing is loaded; {_NO_AHEAD}"
)
_SHUFFLED_EPOCHS = (
    "let an epoch have more batches, by a sampler that goes over the data several"
    " times, and give the DataLoader num_workers=2, pin_memory=True and"
    f" persistent_workers=True; as it is, {_NO_AHEAD}; if all samples fit on the GPU,"
    " keep them there, and pick each batch by a slice of torch.randperm"
)
# Workers are of little use where the first batches of epochs take more of the loading
# than this. Heuristic threshold.
_MANY_FIRSTS = 0.2
_ESTIMATED = "a step, estimated"
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
_WHOLE_SAMPLES = (
    "if __getitem__ does no more than pick an item of arrays in memory, pick whole"
    " batches: with a BatchSampler as sampler and batch_size=None it gets a list of"
    " indices, and each array is indexed once; or keep the data on the GPU, if it fits,"
    " and index it with slices of torch.randperm; workers would stack them one by one"
    " as well"
)
ROW_ADVICE = (
    "pick whole batches: a BatchSampler as sampler and batch_size=None index each"
    " tensor once a batch; or keep the tensors on the GPU, if they fit, and index"
    " them with slices of torch.randperm"
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


def in_process(
    view: View, regions: pl.DataFrame, workers: int, example: str
) -> Explanation:
    """Say what to do where the training process loads."""
    if by_rows := RowByRow.of(view, regions):
        return _rows(by_rows, example)
    kind = LoadingKind.of(view, regions)
    if kind.on_gpu:
        return _on_gpu(kind)
    if cheap := CheapSamples.of(view, regions, kind):
        return _samples(cheap, example)
    plan = WorkerPlan.of(view, regions, workers)
    if plan.loading_ns < _SHORT_NS:
        more = "" if view.trace.frames.height else _STACKS
        unknown = {"workers_now": 0, "workers": 2, "saves_with_workers_ns": None}
        return Explanation(MESSAGE, _SHORT + more, goes=None, data=unknown)
    return _by_workers(view, regions, plan, kind)


def _by_workers(
    view: View, regions: pl.DataFrame, plan: WorkerPlan, kind: LoadingKind
) -> Explanation:
    """Say what workers take off the training process, and what they need."""
    collate = ""
    if hands_much(plan):
        # Workers are of use only once a batch is a few tensors.
        collate = collate_into_few(plan.tensors)
        plan = plan.with_tensors(view, regions, FEW_TENSORS)
    first = first_batches(view, regions)
    if first.share > _MANY_FIRSTS and first.epochs > 1:
        # Of the others, with workers; batches that are there are not loaded at all.
        hidden = plan.share * (1 - first.share)
        step_ns = step_without(view, regions, hidden)
        workers_line = Evidence("workers", "2:", step_ns, "ns", note=_ESTIMATED)
        if kind.shuffles:
            return Explanation(MESSAGE, _SHUFFLED_EPOCHS, hidden, (workers_line,))
        return Explanation(MESSAGE, _SHORT_EPOCHS, evidence=(workers_line,))
    return Explanation(
        MESSAGE,
        collate + workers_advice(plan) + kind.more,
        plan.share,
        tuple(worker_evidence(plan)),
        plan.data,
    )


def _on_gpu(kind: LoadingKind) -> Explanation:
    """Say that loading works on the GPU, sample by sample."""
    calls = Evidence("calls", value=kind.gpu_calls, note="to the GPU in a batch")
    return Explanation(
        "the GPU idles while the training process itself loads the next batch, by work"
        " on the GPU",
        kind.advice_on_gpu,
        # One of the calls is left.
        kind.gpu_share * (1 - 1 / kind.gpu_calls),
        (calls,),
    )


def _samples(loads: CheapSamples, example: str) -> Explanation:
    """Say that samples which cost little are picked and stacked one by one."""
    return Explanation(
        "the GPU idles while the training process itself stacks the next batch from"
        f" {counted(loads.samples, 'sample')}, which are picked one by one",
        _WHOLE_SAMPLES,
        loads.share,
        (
            Evidence(
                "picking", value=loads.making_ns, unit="ns", note="a step, as recorded"
            ),
            Evidence(
                "whole", "batches:", value=loads.whole_ns, unit="ns", note=_ESTIMATED
            ),
        ),
        {"rows": loads.samples, "whole_batches_ns": round(loads.whole_ns)},
        example.replace("256", str(loads.samples)),
    )


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
