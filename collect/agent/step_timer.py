"""The step time, measured without the profiler."""

from __future__ import annotations

import time
from typing import Any

import torch

from . import step_pattern

cuda: Any = torch.cuda  # parts of it have no types

MOST_LAPS = 1000  # that the manifest lists


class StepTimer:
    """Times steps from boundary to boundary, with a device sync at both ends only.

    On CUDA an event is recorded at each boundary: that costs a few microseconds and
    does not sync, so the host keeps running ahead of the GPU.
    """

    def __init__(self, *, on_cuda: bool) -> None:
        self.cuda = on_cuda
        if on_cuda:
            cuda.synchronize()
        self._began = self._last = time.perf_counter()
        self._host: list[float] = []
        self._events: list[Any] = [self._event()] if on_cuda else []

    def lap(self) -> None:
        """Take the time: a step has ended."""
        if self.cuda:
            self._events.append(self._event())
        now = time.perf_counter()
        self._host.append(now - self._last)
        self._last = now

    def needs_more(self) -> bool:
        """Return whether some steps take longer, and it is not seen yet how often."""
        laps = [seconds * 1000 for seconds in self._host]
        return bool(step_pattern.long_places(laps)) and not step_pattern.period(laps)

    def result(self) -> dict[str, Any] | None:
        """Return the step time and its spread in ms, or None if no step has ended."""
        if not self._host:
            return None
        whole = self._last - self._began
        laps = [seconds * 1000 for seconds in self._host]
        if self.cuda:
            # A program may end while it is timed: what follows the last step, as a
            # checkpoint, is of no step. The GPU may be behind, on any stream.
            late = time.perf_counter() - self._last
            cuda.synchronize()
            pairs = zip(self._events, self._events[1:])
            laps = [float(before.elapsed_time(after)) for before, after in pairs]
            until_done = time.perf_counter() - self._began - late
            whole = max(until_done, sum(laps) / 1000)
        period = step_pattern.period(laps)
        # A part of a period has too many of the long steps, or too few.
        counted = laps[-(len(laps) // period * period) :] if period else laps
        mean = sum(counted) / len(counted) if period else whole * 1000 / len(laps)
        long = step_pattern.long_steps(counted)
        return {
            "ms": round(mean, 4),
            **spread(laps),
            "steps": len(laps),
            "seconds": round(whole, 4),
            "clock": "cuda events" if self.cuda else "host",
            "laps_ms": [round(lap, 4) for lap in laps[:MOST_LAPS]],
            "period": period,
            "long_steps": None if long is None else vars(long),
        }

    def _event(self) -> Any:
        event = cuda.Event(enable_timing=True)
        event.record()
        return event


def spread(laps: list[float]) -> dict[str, float]:
    """Return median, minimum, maximum and deciles of step times."""
    ordered = sorted(laps)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        value = ordered[low] + (ordered[high] - ordered[low]) * (place - low)
        return round(value, 4)

    return {
        "median_ms": at(0.5),
        "min_ms": at(0.0),
        "p10_ms": at(0.1),
        "p90_ms": at(0.9),
        "max_ms": at(1.0),
    }
