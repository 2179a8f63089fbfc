"""How much slower host and GPU were while recorded, and how sure that is.

Recording makes the host slower; the GPU runs as fast as ever. What the host takes
without is estimated from what was recorded of it. What a step takes without the
profiler says how good that is: the estimate is scaled until the replay takes as long.
In a step that waits for the GPU anyway, that only says how slow the host is at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceq.analysis.replay.simulation import AS_RECORDED, TimeScale

if TYPE_CHECKING:
    from traceq.analysis.replay.simulation import Replay

# How far the estimate of the host's time may be off.
_LEAST, _MOST = 0.7, 1.5
# From this share of the step on, the GPU is what it waits for.
_GPU_BOUND = 0.95
# The GPU's clock may have been another while the step was measured.
_FASTEST_GPU, _SLOWEST_GPU = 0.8, 1.25
# How well a measured step is known.
_SPREAD = 0.05
_HALVINGS = 7
_SLOWEST = 3.0


@dataclass(frozen=True)
class Calibration:
    """How fast host and GPU are without the profiler."""

    likely: TimeScale
    fast: TimeScale
    """As likely, with the host as fast as it may be."""
    slow: TimeScale
    """As likely, with the host as slow as it may be."""
    measured: bool
    """Whether this is known from a step without the profiler."""


def calibrate(replay: Replay, step_ns: float | None = None) -> Calibration:
    """Return the paces at which the replay takes as long as a step really does."""
    if not step_ns:
        # Slower than it was while recorded the host is not.
        slow = min(
            (TimeScale(_MOST), AS_RECORDED),
            key=lambda scale: replay.run(scale=scale).step_ns,
        )
        return Calibration(TimeScale(), TimeScale(_LEAST), slow, measured=False)
    by_gpu = replay.run(scale=TimeScale(host=0)).step_ns
    if by_gpu < _GPU_BOUND * step_ns:
        likely, fast, slow = (
            TimeScale(_fitted(replay, step_ns * factor))
            for factor in (1, 1 - _SPREAD, 1 + _SPREAD)
        )
        return Calibration(likely, fast, slow, measured=True)
    gpu = min(max(step_ns / by_gpu, _FASTEST_GPU), _SLOWEST_GPU)
    # A host any slower than this would show in the step.
    most = min(_MOST, _fitted(replay, max(step_ns, by_gpu) * (1 + _SPREAD)))
    likely, fast, slow = (TimeScale(min(host, most), gpu) for host in (1, _LEAST, most))
    return Calibration(likely, fast, slow, measured=True)


def _fitted(replay: Replay, step_ns: float) -> float:
    """Return the scale of the host's time at which a step takes that long."""

    def at(host: float) -> tuple[float, float]:
        return host, replay.run(scale=TimeScale(host)).step_ns

    low, high = at(0), at(_SLOWEST)
    for _ in range(_HALVINGS):
        middle = at((low[0] + high[0]) / 2)
        low, high = (low, middle) if middle[1] > step_ns else (middle, high)
    # Between two scales this near the step grows by a straight line.
    (fast, shorter), (slow, longer) = low, high
    share = (step_ns - shorter) / (longer - shorter) if longer > shorter else 0.5
    return fast + min(max(share, 0.0), 1.0) * (slow - fast)
