"""Peak memory of the timed steps, by the statistics of torch's allocator."""

from __future__ import annotations

from typing import Any

import torch

from . import torch_state

cuda: Any = torch.cuda  # parts of it have no types
NO_STATISTICS = "the CPU has no allocator statistics"


def reset(options: dict[str, Any]) -> None:
    """Begin to measure the peak, if that is asked for: the program may ask, too."""
    if options.get("peak") and torch_state.uses_cuda():
        cuda.reset_peak_memory_stats()


def facts(options: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of the manifest; nothing if it is not asked for."""
    if not options.get("peak"):
        return {}
    if not torch_state.uses_cuda():
        return {"peak_memory": {"allocated": None, "why": NO_STATISTICS}}
    peak = {
        "allocated": cuda.max_memory_allocated(),
        "reserved": cuda.max_memory_reserved(),
    }
    return {"peak_memory": peak}
