"""What a step waits for: the GPU, or the host that feeds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.model.facts import Facts

# From this share of busy time on, the GPU is what a step waits for.
GPU_BOUND = 0.9
# Recording stacks makes the host up to this much slower than it is.
INFLATION = 3.0


@dataclass(frozen=True)
class Bound:
    """What a step waits for."""

    by: Literal["gpu", "host", "unclear"]
    step_ns: int
    """What a step takes: as measured without the profiler, else as recorded."""
    busy: float
    """Share of the step in which the GPU runs something, at most 1."""
    measured: bool
    """Whether the step was measured without the profiler."""


def bound(steady: SteadySteps, facts: Facts, step_ns: int | None = None) -> Bound:
    """Return what a step of this part waits for.

    Without a step time that was measured without the profiler, a trace with stacks
    may look bound by the host while the program is not.
    """
    busy = steady.gpu_busy / steady.count
    step = step_ns or steady.time // steady.count
    share = min(1.0, busy / step) if step else 0.0
    if not facts.gpu or not busy:
        return Bound("host", step, share, measured=step_ns is not None)
    if share >= GPU_BOUND:
        return Bound("gpu", step, share, measured=step_ns is not None)
    inflated = facts.stacks and step_ns is None
    if inflated and share * INFLATION >= GPU_BOUND:
        return Bound("unclear", step, share, measured=False)
    return Bound("host", step, share, measured=step_ns is not None)
