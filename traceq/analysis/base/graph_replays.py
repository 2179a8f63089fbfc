"""Counts of replayed CUDA graph kernels, and of those with a known captured op."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.common.expressions import known
from traceq.model.lint_report import Replayed

if TYPE_CHECKING:
    from traceq.model.trace import Trace


def replayed(trace: Trace) -> Replayed | None:
    """Return the counts of replayed kernels and known ops; None without replays."""
    replays = trace.runtime["call"] == "graph launch"
    if not replays.any():
        return None
    certain = trace.kernels["certain"].filter(known(replays[trace.kernels["launch"]]))
    if not len(certain):
        return None
    return Replayed(
        kernels=len(certain),
        mapped=len(certain) - certain.null_count(),
        certain=int(certain.sum()),
        captures=trace.captures > 0 or bool(trace.ops["captured"].any()),
    )
