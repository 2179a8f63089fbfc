"""Advice on the workers of a DataLoader, by what they would take."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from traceq.linter import (
    Evidence,
    View,
)

if TYPE_CHECKING:
    from ._workers import WorkerPlan


TAKING = (
    "with pin_memory=True a thread takes batches ahead; or collate a batch into fewer"
    " tensors, as the program maps the memory of each"
)
# The same where the program does not wait for them, and where it may not.
READY = (
    "the GPU idles while the program takes a batch that is ready from the DataLoader's"
    " workers",
    f"more workers do not help: {TAKING}",
)
_EITHER = (
    "the GPU idles while the program takes a batch from the DataLoader's workers",
    "stacks tell which it is: where the workers do not keep up, raise num_workers;"
    f" where batches are ready, {TAKING}",
)
# A batch was ready if less than this fraction of taking it was waiting. Heuristic
# threshold: three tensors were taken in 2.5 ms, of which 0.3% was waiting.
_WAITED = 0.25
# Without stacks, workers do not keep up if loading needs this many times as many of
# them. Heuristic threshold.
_CLEARLY = 1.2
# Fewer tensors in a batch are a few already.
FEW_TENSORS = 4
# Handing tensors over is reported from this fraction of the loading time on. Heuristic
# threshold.
_MUCH = 0.25
# From this factor on the number of workers is written without a decimal. Heuristic
# threshold.
_SOME = 2


def workers_advice(plan: WorkerPlan) -> str:
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
    return text


def hands_much(plan: WorkerPlan) -> bool:
    """Return whether handing over a batch of many tensors takes what workers save."""
    much = plan.handing_ns > _MUCH * plan.loading_ns
    return much and plan.tensors > FEW_TENSORS


def collate_into_few(tensors: float) -> str:
    return (
        f"{round(tensors)} tensors are copied to the GPU in a step: of a batch that has"
        " more than a few, collate them first, as one with all rows and one with the"
        " sample of each row, since each is handed over, pinned and copied by itself;"
        " then "
    )


def ready_batches(
    loading_ns: int, waited_ns: int | None, times: float
) -> tuple[str, str] | None:
    """Return what to say and to do if batches were ready, or may have been."""
    if waited_ns is None:
        return _EITHER if times < _CLEARLY else None
    return READY if waited_ns < _WAITED * loading_ns else None


def times_as_many(view: View, plan: WorkerPlan) -> float:
    """Return how many times as many workers it takes for the GPU not to wait."""
    now = view.bound.step_ns
    return now / plan.rest_ns if 0 < plan.rest_ns < now else 1.0


def more_workers(view: View, plan: WorkerPlan) -> str:
    """Say how many more workers there must be for the GPU not to wait for them."""
    times = times_as_many(view, plan)
    if times < _CLEARLY:
        return ""
    # Of how well many workers share a machine the trace knows nothing.
    rounded = ceil(2 * times) / 2 if times < _SOME else round(times)
    return f", to about {rounded:g} times the present number"


def worker_evidence(plan: WorkerPlan) -> list[Evidence]:
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
    if plan.copied:
        reasons.append(
            Evidence("tensors", value=round(plan.copied), note="of a batch are copied")
        )
    return reasons


def wait_evidence(view: View, waited_ns: int | None) -> list[Evidence]:
    if waited_ns is None:
        return []
    note = "a step until a batch was ready, as recorded"
    return [Evidence("waits", value=waited_ns / view.steps, unit="ns", note=note)]
