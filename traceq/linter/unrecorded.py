"""Time of a step that the recording does not show."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from traceq.analysis.base.assumptions import MEASURED_SPREAD
from traceq.analysis.base.ownership import has_like
from traceq.common.words import time

if TYPE_CHECKING:
    from traceq.linter.view import View
    from traceq.model.facts import Facts

# Where a DataLoader's workers load the batches.
_WORKERS = "_MultiProcessingDataLoaderIter"
_QUEUE = (
    "; the wait for the DataLoader's workers may be hidden, as their queue fills up"
    " while the recording starts: time the program with more workers"
)


def with_failure(facts: Facts, view: View) -> Facts:
    """Return facts that say if the program failed after its steps were recorded."""
    run = view.trace.run
    if run is None or not run.failed_with:
        return facts
    sentence = (
        f"the program ended with {run.failed_with} after these steps were recorded"
    )
    return replace(facts, lacks=(*facts.lacks, sentence))


def with_levels(facts: Facts, view: View) -> Facts:
    """Return facts that say if steps went to another level while they were timed."""
    rank = view.trace.rank
    timed = rank.step_time if rank else None
    if (
        timed is None
        or timed.last_level_ns is None
        or view.step_ns != timed.last_level_ns
    ):
        return facts
    slower = timed.ns > timed.last_level_ns
    sentence = (
        f"the step time of {time(timed.last_level_ns)} is of the last measured steps"
        f" alone: those before took {'longer' if slower else 'less'}, all together"
        f" {time(timed.ns)} on average"
    )
    return replace(facts, lacks=(*facts.lacks, sentence))


def with_unrecorded(facts: Facts, view: View) -> Facts:
    """Return facts that say how much of a step without the profiler is not recorded.

    Recording makes a host-bound step longer. One that is shorter as recorded lacks
    something that other steps have, and the estimates spread it over the host's work.
    """
    bound = view.bound
    missing = bound.step_ns - bound.recorded_step_ns
    # The error of a measured step, on both sides.
    least = 2 * MEASURED_SPREAD * bound.step_ns
    if not bound.measured or bound.by == "gpu" or missing < least or not view.steps:
        return facts
    rank = view.trace.rank
    if rank and rank.step_time and rank.step_time.long and rank.window != "typical":
        return facts  # long steps are among the recorded ones, and more often than else
    workers = has_like(view.trace.annotations, _WORKERS)
    sentence = (
        f"{time(missing)} or more of a step are not in the recording: it takes"
        f" {time(bound.step_ns)} without the profiler and"
        f" {time(bound.recorded_step_ns)} as recorded, and the estimates spread the"
        " difference over the host's work"
    )
    return replace(facts, lacks=(*facts.lacks, sentence + _QUEUE * workers))
