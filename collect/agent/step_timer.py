"""The step time, measured without the profiler."""

from __future__ import annotations

import time
from typing import Any

import torch

cuda: Any = torch.cuda  # parts of it have no types


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

    def result(self) -> dict[str, Any] | None:
        """Return the step time and its spread in ms, or None if no step has ended."""
        if not self._host:
            return None
        if self.cuda:
            cuda.synchronize()
        whole = (time.perf_counter() if self.cuda else self._last) - self._began
        laps = [seconds * 1000 for seconds in self._host]
        if self.cuda:
            pairs = zip(self._events, self._events[1:])
            laps = [float(one.elapsed_time(two)) for one, two in pairs]
        return {
            "ms": round(whole * 1000 / len(laps), 4),
            **spread(laps),
            "steps": len(laps),
            "seconds": round(whole, 4),
            "clock": "cuda events" if self.cuda else "host",
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
