"""Stalls of the input pipeline: where batches are loaded, and what to change."""

from __future__ import annotations

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
    disjoint,
    named_like,
)
from traceq.model import names

from ._in_process import IN_PROCESS, MESSAGE, Explanation, in_process
from ._worker_advice import (
    READY,
    TAKING,
    more_workers,
    ready_batches,
    times_as_many,
    wait_evidence,
)
from ._workers import WorkerPlan, called_in, first_batches, waited_ns

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_IN_WORKERS = "_MultiProcessingDataLoaderIter"
# Torch's iterators of a DataLoader: who loads the batch, and what to do about it.
LOADERS = {
    IN_PROCESS: (MESSAGE, ""),
    _IN_WORKERS: (
        "the GPU idles while the program waits for the DataLoader's workers",
        "the workers do not keep up: raise num_workers{to}, up to the number of cores;"
        " raise prefetch_factor if only some batches are slow; set"
        " persistent_workers=True if it is the start of an epoch; or do less per sample"
        " (decode and augment on the GPU, cache what is computed every time)",
    ),
}
# The share of loading from which on the first batches of epochs are the stall.
_MOSTLY = 0.5
_FIRST = (
    "the GPU idles while the DataLoader's workers load the first batch of an epoch",
    "more workers do not bring the first batch sooner: let an epoch have more batches,"
    " by a sampler that goes over the data several times; do less per sample (decode"
    " and augment on the GPU, cache what is computed every time)",
)
# A DataLoader keeps two batches ahead for each worker, so that in fewer steps than
# these some are ready whether the workers keep up or not. Heuristic threshold.
_LONG = 20
_READY_FOR_NOW = (
    "a DataLoader keeps batches ahead, so that a few steps do not show whether its"
    f" workers keep up: time the program with twice as many; {TAKING}"
)
# The fraction of taking batches that a thread takes off the program: while it runs
# Python, it holds the GIL. Heuristic, not measured.
_THREAD = 0.5
_OTHER = (
    "the GPU idles while the next batch is loaded",
    "load the next batch while the GPU computes: in worker processes or in a thread",
)


def explanation(
    view: View,
    row: Mapping[str, Any],
    regions: pl.DataFrame,
    workers: int,
    example: str,
) -> Explanation:
    """Return why a loader stalls, and what to do, by the process that loads."""
    if row["loader"] == IN_PROCESS:
        return in_process(view, regions, workers, example)
    if row["loader"] == _IN_WORKERS:
        return _in_workers(view, row, regions, workers)
    return Explanation(*_OTHER)


def _in_workers(
    view: View, row: Mapping[str, Any], regions: pl.DataFrame, workers: int
) -> Explanation:
    """Say what to do where workers load."""
    message, advice = LOADERS[_IN_WORKERS]
    plan, removed = WorkerPlan.of(view, regions, workers), 1.0
    waited = waited_ns(view, regions)
    taken = ready_batches(row["loading"], waited, times_as_many(view, plan))
    if taken:
        (message, advice), removed = taken, _THREAD
    if taken == READY and view.steps < _LONG:
        advice = _READY_FOR_NOW
    first = first_batches(view, regions)
    if first.share > _MOSTLY:
        # The others are loaded ahead as they are.
        (message, advice), removed = _FIRST, first.share
    advice = advice.replace("{to}", more_workers(view, plan))
    return Explanation(message, advice, removed, tuple(wait_evidence(view, waited)))


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


def stall_line(view: View, regions: pl.DataFrame) -> list[Evidence]:
    """Return what of loading is stalls that steps without the profiler do not have."""
    calls = view.host_account.calls.filter(pl.col("unseen") > 0)
    stalls = view.trace.ops[calls["op"]].hstack(calls[["unseen"]])
    unseen = int(called_in(stalls, regions)["unseen"].sum()) / view.steps
    if not unseen:
        return []
    note = "a step of it, as recorded: the steps timed without the profiler stop less"
    return [Evidence("stops", value=unseen, unit="ns", note=note)]


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
