"""Launches per step: the one number that all commands print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.graph.launches import outside_captures as launches_outside_captures

if TYPE_CHECKING:
    from traceq.model.trace import Trace

__all__ = ["launches_outside_captures", "launches_per_step"]


def launches_per_step(trace: Trace) -> float:
    """Return the calls of a steady-state step that launch kernels or CUDA graphs.

    Without steps, those of the whole trace.
    """
    steps = trace.steps.filter("averaged")
    if steps.height:
        return float(steps["launches"].sum()) / steps.height
    return float(launches_outside_captures(trace.runtime).height)
