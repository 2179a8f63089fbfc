"""How much of the work in replayed CUDA graphs has the op of its capture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.outcome import Replayed

if TYPE_CHECKING:
    from traceq.trace import Trace


def replayed(trace: Trace) -> Replayed | None:
    """Return how much was replayed, and what of it is known; none without replays."""
    launches = trace.runtime.filter(pl.col("call") == "graph launch")
    kernels = trace.kernels.join(launches, left_on="launch", right_on="id", how="semi")
    if kernels.is_empty():
        return None
    return Replayed(
        kernels=kernels.height,
        mapped=kernels["certain"].drop_nulls().len(),
        certain=int(kernels["certain"].sum()),
        captures=trace.captures > 0 or bool(trace.ops["captured"].any()),
    )
