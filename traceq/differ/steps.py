"""Step time before and after, and the significance of the difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import (
    MEASURED_NOISE,
    RECORDED_NOISE,
    SINGLE_STEP_NOISE,
)
from traceq.analysis.base.steady import SteadySteps, steady_steps

if TYPE_CHECKING:
    from traceq.model.recording import Recording
    from traceq.model.trace import Trace


@dataclass(frozen=True)
class Step:
    """Duration of a step, in nanoseconds."""

    ns: float
    """As measured without the profiler, on average; else the median as recorded."""
    low_ns: float
    high_ns: float
    count: int
    """Number of steps that this is computed from."""
    measured: bool
    """True if it was measured without the profiler."""


def typical(trace: Trace) -> SteadySteps:
    """Return the middle third of the steps by length, whose median is that of all.

    A step that something rare delayed tells nothing about the others.
    """
    steady = steady_steps(trace)
    if steady.windows["step"].null_count():
        return steady
    length = pl.col("end") - pl.col("start")
    windows = steady.windows.sort(length, "step")
    count = windows.height
    middle = max(1, count // 3)
    middle += (count - middle) % 2
    windows = windows.slice((count - middle) // 2, middle).sort("start")
    kernels = steady.kernels.join(windows.select("step"), on="step", how="semi")
    busy = trace.steps.join(windows.select("step"), on="step", how="semi")["gpu_busy"]
    return SteadySteps(windows, kernels, int(busy.sum()))


def recorded_step(trace: Trace) -> Step:
    """Return the duration of a step in the trace."""
    windows = steady_steps(trace).windows
    lengths = windows["end"] - windows["start"]
    ordered = lengths.sort().to_list()
    middle = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return Step(sum(middle) / 2, ordered[0], ordered[-1], len(ordered), measured=False)


def steps_of(before: Recording, after: Recording) -> tuple[Step, Step]:
    """Return both step times: as measured if both are, else as recorded."""
    steps = [measured_step(side) for side in (before, after)]
    if steps[0] is not None and steps[1] is not None:
        return steps[0], steps[1]
    traces = [side.trace for side in (before, after) if side.trace is not None]
    first, second = map(recorded_step, traces)
    return first, second


def measured_step(recording: Recording) -> Step | None:
    """Return the duration of a step without the profiler, if it was measured."""
    if not recording.step_ns:
        return None
    trace = recording.trace
    timed = trace.rank.step_time if trace is not None and trace.rank else None
    if timed is None or timed.ns != recording.step_ns:
        ns = recording.step_ns
        return Step(ns, ns, ns, 1, measured=True)
    return Step(timed.ns, timed.min_ns, timed.max_ns, timed.steps, measured=True)


def significant(before: Step, after: Step) -> bool:
    """Return whether the steps differ by more than two runs of one program do.

    That is a few percent, and half of what steps differ by among themselves where
    few were recorded; a step time measured over many steps is more reliable.
    """
    change = abs(after.ns - before.ns)
    noise = MEASURED_NOISE if before.measured else RECORDED_NOISE
    if not before.measured and min(before.count, after.count) == 1:
        noise = SINGLE_STEP_NOISE
    if change <= noise * max(before.ns, after.ns):
        return False
    if before.measured:
        # Where many were timed, the fastest ones, which nothing delayed, agree.
        fastest = (after.low_ns - before.low_ns) / (after.ns - before.ns)
        return fastest * change > noise / 2 * max(before.ns, after.ns)
    spread = max(side.high_ns - side.low_ns for side in (before, after))
    return change > spread / 2
