"""Calibration of host and GPU speed without the profiler, with a plausible range.

Recording slows the host down and leaves the GPU as fast as before. The host's time
without the profiler is estimated from the recorded events. A step time measured without
the profiler calibrates that estimate: it is scaled until the replay takes as long. In a
GPU-bound step this is only an upper bound of the host's time, and the GPU takes the
rest of the step: otherwise the replay would wait for a host that does not bound it, and
no faster kernel would shorten the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, structs

from traceq.analysis.base.assumptions import (
    BISECTIONS,
    FASTEST_GPU,
    FASTEST_HOST,
    GPU_BOUND,
    MEASURED_SPREAD,
    SLOWEST_GPU,
    SLOWEST_HOST,
    SLOWEST_SEARCHED,
)
from traceq.analysis.replay.simulation import AS_RECORDED, TimeScale

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceq.analysis.replay.simulation import Replay

# Steps that differ by less are the same: the search for a speed ends there.
_SAME = 0.001


class Calibration(Struct, frozen=True):
    """Host and GPU speed without the profiler."""

    likely: TimeScale
    fast: TimeScale
    """As likely, with the host as fast as it may be."""
    slow: TimeScale
    """As likely, with the host as slow as it may be."""
    measured: bool
    """True if the speeds come from a step timed without the profiler."""
    other: Calibration | None = None
    """The less likely one of two, near the balance of host and GPU."""
    other_weight: float = 0.0
    """Probability of the other one, from 0 to 0.5."""

    @property
    def scales(self) -> tuple[TimeScale, ...]:
        """The distinct ones of likely, fast and slow, the likely one first."""
        return tuple(dict.fromkeys((self.likely, self.fast, self.slow)))


def calibrate(replay: Replay, step_ns: float | None = None) -> Calibration:
    """Return the speeds at which the replay takes as long as the true step."""
    if not step_ns:
        # The host is not slower than it was while recorded.
        slow = min(
            (TimeScale(SLOWEST_HOST), AS_RECORDED),
            key=lambda scale: replay.run(scale=scale).step_ns,
        )
        return Calibration(TimeScale(), TimeScale(FASTEST_HOST), slow, measured=False)
    gpu_alone_ns = replay.run(scale=TimeScale(host=0)).step_ns
    host = _fitted(replay, step_ns)
    # Where the GPU's work was lost, the GPU alone takes no time.
    weight = _gpu_weight(step_ns / gpu_alone_ns, host) if gpu_alone_ns else 0.0
    if weight == 0:
        return _host_bound(replay, step_ns, host)
    gpu_bound = _gpu_bound(replay, step_ns, gpu_alone_ns)
    if weight == 1:
        return gpu_bound
    host_bound = _host_bound(replay, step_ns, host)
    if weight < 0.5:  # noqa: PLR2004 - half of the weight
        return structs.replace(host_bound, other=gpu_bound, other_weight=weight)
    return structs.replace(gpu_bound, other=host_bound, other_weight=1 - weight)


def _gpu_weight(ratio: float, host: float) -> float:
    """Return how likely it is that the GPU, not the host, bounds the measured step.

    ``ratio`` is the step divided by what the GPU takes alone; ``host`` is the scale of
    the host's time that explains the step. A measured step is known to a few percent,
    so the weight does not jump at a limit.
    """
    gpu_bound = _below(ratio, 1 / GPU_BOUND)
    # A host that would have to be slower than hosts are does not bound a step, if a GPU
    # as slow as GPUs are explains it.
    slow_gpu = (1 - _below(host, SLOWEST_HOST)) * _below(ratio, SLOWEST_GPU)
    return 1 - (1 - gpu_bound) * (1 - slow_gpu)


def _below(value: float, limit: float) -> float:
    """Return 1 well below a limit, 0 well above it, and a straight line between."""
    return min(max(0.5 + (1 - value / limit) / (2 * MEASURED_SPREAD), 0.0), 1.0)


def _host_bound(replay: Replay, step_ns: float, host: float) -> Calibration:
    """Return the speeds if the host bounds the step: the host takes its rest."""
    fast, slow = (
        TimeScale(_fitted(replay, step_ns * factor))
        for factor in (1 - MEASURED_SPREAD, 1 + MEASURED_SPREAD)
    )
    return Calibration(TimeScale(host), fast, slow, measured=True)


def _gpu_bound(replay: Replay, step_ns: float, gpu_alone_ns: float) -> Calibration:
    """Return the speeds if the GPU bounds the step: the GPU takes its rest."""
    gpu = min(max(step_ns / gpu_alone_ns, FASTEST_GPU), SLOWEST_GPU)
    # A host any slower than this would show in the step.
    visible_ns = max(step_ns, gpu_alone_ns) * (1 + MEASURED_SPREAD)
    slowest = min(SLOWEST_HOST, _fitted(replay, visible_ns))
    scales = (TimeScale(min(host, slowest), gpu) for host in (1, FASTEST_HOST, slowest))
    likely, fast, slow = scales
    if replay.run(scale=likely).step_ns > (1 + _SAME) * step_ns:
        likely = slow = _with_waits(replay, step_ns, likely)
        fast = _with_waits(replay, step_ns, fast) if fast.host < likely.host else likely
    return Calibration(likely, fast, slow, measured=True)


def _with_waits(replay: Replay, step_ns: float, scale: TimeScale) -> TimeScale:
    """Return speeds at which a step that is longer at these takes as long as measured.

    After each wait of the host the GPU idles. That is part of the step, which its work
    does not take as well: first the GPU is as fast as it was recorded, then the host
    faster than expected, then the GPU faster.
    """

    def taken(host: float, gpu: float) -> float:
        return replay.run(scale=TimeScale(host, gpu)).step_ns

    host, recorded = scale.host, min(1.0, scale.gpu)
    fastest = min(FASTEST_HOST, host)
    if taken(host, recorded) <= step_ns:
        limits = (recorded, scale.gpu)
    elif taken(fastest, recorded) <= step_ns:
        between = (fastest, host)
        host = _between(lambda host: taken(host, recorded), step_ns, between)
        return TimeScale(host, recorded)
    else:
        host, limits = fastest, (FASTEST_GPU, recorded)
    return TimeScale(host, _between(lambda gpu: taken(host, gpu), step_ns, limits))


def _fitted(replay: Replay, step_ns: float) -> float:
    """Return the scale of the host's time at which a step takes that long."""
    return _between(
        lambda host: replay.run(scale=TimeScale(host)).step_ns,
        step_ns,
        (0, SLOWEST_SEARCHED),
    )


def _between(
    taken: Callable[[float], float], step_ns: float, limits: tuple[float, float]
) -> float:
    """Return the scale between two at which a step takes that long."""

    def tried(scale: float) -> tuple[float, float]:
        return scale, taken(scale)

    low, high = (tried(limit) for limit in limits)
    for _ in range(BISECTIONS):
        middle = tried((low[0] + high[0]) / 2)
        low, high = (low, middle) if middle[1] > step_ns else (middle, high)
    # Between two scales this near the step grows by a straight line.
    (fast, shorter), (slow, longer) = low, high
    share = (step_ns - shorter) / (longer - shorter) if longer > shorter else 0.5
    return fast + min(max(share, 0.0), 1.0) * (slow - fast)
