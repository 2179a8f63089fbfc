"""What recorded times stand for in a step that takes as long as it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.replay.bound import INFLATION

if TYPE_CHECKING:
    from traceq.diff.steps import Step
    from traceq.diff.structure import Parts


@dataclass(frozen=True)
class Scale:
    """What recorded times stand for, in a step that takes as long as it does.

    The GPU takes as long without the profiler as with it, so it is the idle time that
    makes up the difference.
    """

    busy: float
    idle: float
    missing: float
    """Idle time of the step of which the trace has none."""
    sure: float
    """The share of idle time that is there even if recording stacks tripled it."""


def scale_of(parts: Parts, step: Step, *, stacks: bool) -> Scale:
    """Return how to scale the parts for them to add up to the step."""
    busy = float(parts.rows["busy"].sum())
    idle = float(parts.rows.select(pl.col("late").sum() + pl.col("dry").sum()).item())
    idle += sum(parts.special.values())
    if step.ns <= busy:
        return Scale(step.ns / busy if busy else 0.0, 0.0, 0.0, 1.0)
    left = step.ns - busy
    sure = 1.0
    if stacks and not step.measured:
        sure = max(0.0, step.ns / INFLATION - busy) / left
    if not idle:
        return Scale(1.0, 0.0, left, sure)
    return Scale(1.0, left / idle, 0.0, sure)
