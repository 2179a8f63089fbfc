"""Roofline estimate of a GPU's time, at the efficiency that real kernels reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.base.assumptions import SHORTEST_KERNEL_NS, UNKNOWN_SAVING
from traceq.common.units import NS_PER_S

if TYPE_CHECKING:
    from traceq.analysis.base.assumptions import Efficiency
    from traceq.analysis.base.device import Gpu


def roofline_ns(  # noqa: PLR0913 - what a roofline depends on
    gpu: Gpu,
    efficiency: Efficiency,
    *,
    moved: float,
    flops: float = 0.0,
    dtype: str = "",
    kernels: int = 1,
) -> float | None:
    """Return the time of this work in nanoseconds; None if the peaks are unknown.

    That is the time to compute ``flops`` in ``dtype`` (a short name, as bf16) or the
    time to move ``moved`` bytes, whichever is longer; never less than the shortest that
    this many ``kernels`` take.
    """
    peak = gpu.peak
    if peak is None or (flops and dtype not in peak.flops):
        return None
    seconds = moved / (efficiency.bandwidth * peak.bandwidth)
    if flops:
        seconds = max(seconds, flops / (efficiency.compute * peak.flops[dtype]))
    return max(seconds * NS_PER_S, float(kernels * SHORTEST_KERNEL_NS))


def saved_share(now_ns: float, then_ns: float | None) -> float:
    """Return the saved fraction of a time, also if the remaining time is unknown.

    >>> saved_share(100, 25), saved_share(100, 200), saved_share(100, None)
    (0.75, 0.0, 0.5)
    """
    if then_ns is None:
        return UNKNOWN_SAVING
    return max(0.0, 1 - then_ns / now_ns) if now_ns else 0.0
