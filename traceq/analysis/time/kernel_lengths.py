"""Kernel durations, compared with the launch overhead on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.steady import in_steps, steady_steps
from traceq.analysis.time.launch_overhead import launches_outside_captures

if TYPE_CHECKING:
    from traceq.model.trace import Trace

_BINS_PER_DECADE = 4


@dataclass(frozen=True)
class KernelLengths:
    """The kernels of the steady steps by their duration."""

    bins: pl.DataFrame
    """``low`` and ``high`` in ns, the number of ``kernels`` and their ``time`` in ns,
    all of a step. Each bin is a quarter of a decade; empty ones between others are
    there."""
    kernels: float
    """Kernels per step."""
    launch_ns: float | None
    """Median duration of a launch on the host, as recorded; none where the trace has no
    launches."""
    shorter: float
    """The share of kernels that run for less than that."""


def kernel_lengths(trace: Trace) -> KernelLengths | None:
    """Return the durations of kernels; None if there are none."""
    steady = steady_steps(trace)
    kernels = steady.kernels.filter(
        pl.col("activity") == "kernel", pl.col("dur") > 0
    ).select("dur")
    if not kernels.height:
        return None
    launches = launches_outside_captures(in_steps(trace.runtime, trace, steady))
    launch = launches.filter(pl.col("call") == "launch")["dur"].median()
    launch_ns = float(launch) if isinstance(launch, (int, float)) else None
    shorter = (kernels["dur"] < launch_ns).mean() if launch_ns else 0.0
    return KernelLengths(
        bins=_bins(kernels, steady.count),
        kernels=kernels.height / steady.count,
        launch_ns=launch_ns,
        shorter=shorter if isinstance(shorter, float) else 0.0,
    )


def _bins(kernels: pl.DataFrame, steps: int) -> pl.DataFrame:
    place = (pl.col("dur").log10() * _BINS_PER_DECADE).floor().cast(pl.Int64)
    counted = (
        kernels.group_by(bin=place)
        .agg(kernels=pl.len() / steps, time=pl.col("dur").sum() / steps)
        .sort("bin")
    )
    first, last = counted["bin"][0], counted["bin"][-1]
    every = pl.DataFrame({"bin": range(first, last + 1)}, schema={"bin": pl.Int64})
    edge = pl.lit(10.0) ** (pl.col("bin") / _BINS_PER_DECADE)
    above = pl.lit(10.0) ** ((pl.col("bin") + 1) / _BINS_PER_DECADE)
    return (
        every.join(counted, on="bin", how="left", maintain_order="left")
        .with_columns(pl.col("kernels", "time").fill_null(0.0))
        .select("kernels", "time", low=edge, high=above)
    )
