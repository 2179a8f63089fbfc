"""Peak memory of a step's tensors on the CPU, which has no allocator statistics."""

from __future__ import annotations

import gc
import sys
from typing import Any, Callable

import torch

_CPU = torch.autograd.DeviceType.CPU
_MARK = "traceq: second"


def cpu_peak(step: Callable[[], object]) -> int:
    """Return the most bytes that tensors take at once during a step; it runs twice.

    torch reports what is allocated and freed while it profiles, but not what was
    allocated before. So the first step replaces what the one before has left, and what
    lives between the two is counted; the second one adds to that.
    """
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        step()
        between = _living()
        with torch.profiler.record_function(_MARK):
            step()
    inner: Any = profiler.profiler
    events = inner.kineto_results.events()
    (start,) = (event.start_ns() for event in events if event.name() == _MARK)
    changes = sorted(
        (event.start_ns(), event.nbytes())
        for event in events
        if event.name() == "[memory]" and event.device_type() == _CPU
    )
    level = highest = between
    for at, size in changes:
        if at >= start:
            level += size
            highest = max(highest, level)
    return highest


def forget_compiled() -> None:
    """Have torch.compile begin again, so that what it does is seen."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


def _living() -> int:
    """Return the bytes of all tensors of the CPU that Python knows."""
    sizes: dict[int, int] = {}
    for item in gc.get_objects():
        if issubclass(type(item), torch.Tensor) and item.device.type == "cpu":
            try:
                storage = item.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
                grad = item.grad if item.is_leaf else None
                if grad is not None:
                    retained = grad.untyped_storage()
                    sizes[retained.data_ptr()] = retained.nbytes()
            except Exception:  # noqa: BLE001, S112 - sparse and fake tensors have none
                continue
    return sum(sizes.values())
