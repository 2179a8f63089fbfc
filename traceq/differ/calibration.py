"""Scale factors from recorded times to the true step time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import PROFILER_SLOWDOWN

if TYPE_CHECKING:
    from traceq.differ.steps import Step
    from traceq.differ.structure import Parts


@dataclass(frozen=True)
class Scale:
    """Factors for recorded times, so that they add up to the step.

    The GPU takes as long without the profiler as with it, so it is the idle time that
    makes up the difference.
    """

    gpu: float
    """For time on the GPU."""
    idle: float
    """For idle time."""
    missing_ns: float
    """Idle time of the step where the trace has none to scale."""
    sure: float
    """The share of idle time that is there even if the profiler slowed the host down
    as much as it may."""


def scale_of(parts: Parts, step: Step, *, stacks: bool) -> Scale:
    """Return the scale at which the parts add up to the step."""
    gpu_ns = float(parts.rows["gpu_ns"].sum())
    idle_ns = sum(parts.special.values()) + float(
        parts.rows.select(
            pl.col("launch_idle_ns").sum() + pl.col("sync_idle_ns").sum()
        ).item()
    )
    if step.ns <= gpu_ns:
        return Scale(step.ns / gpu_ns if gpu_ns else 0.0, 0.0, 0.0, 1.0)
    left_ns = step.ns - gpu_ns
    sure = 1.0
    if stacks and not step.measured:
        sure = max(0.0, step.ns / PROFILER_SLOWDOWN - gpu_ns) / left_ns
    if not idle_ns:
        return Scale(1.0, 0.0, left_ns, sure)
    return Scale(1.0, left_ns / idle_ns, 0.0, sure)
