"""Steady-state steps, warm-up excluded: what averages are taken over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.expressions import END, known
from traceq.graph.devices import busiest_device
from traceq.intervals import covered

if TYPE_CHECKING:
    from traceq.trace import Trace


@dataclass(frozen=True)
class SteadySteps:
    """The steps without warm-up, or the whole trace where there are none."""

    windows: pl.DataFrame
    """``step``, ``start`` and ``end``; without steps one row, whose step is null."""
    kernels: pl.DataFrame
    """The GPU work of these steps."""
    gpu_busy: int
    """Nanoseconds in which the busiest GPU ran work of these steps."""

    @property
    def count(self) -> int:
        """How many steps there are; 1 for a trace without."""
        return self.windows.height

    @property
    def time(self) -> int:
        """How many nanoseconds the steps took together."""
        return int((self.windows["end"] - self.windows["start"]).sum())


@cached_per_trace
def steady_steps(trace: Trace) -> SteadySteps:
    """Return the steady-state steps of a trace, or all of it where it has no steps."""
    steps = trace.steps.filter(~pl.col("warmup"))
    if steps.height:
        windows = steps.select("step", "start", "end")
        kernels = trace.kernels.join(windows.select("step"), on="step", how="semi")
        return SteadySteps(windows, kernels, int(steps["gpu_busy"].sum()))
    ends = [
        (table["ts"] + table["dur"]).max()
        for table in (trace.ops, trace.kernels, trace.runtime, trace.annotations)
    ]
    end = max((end for end in ends if isinstance(end, int)), default=0)
    windows = pl.DataFrame(
        {"step": [None], "start": [0], "end": [end]},
        schema={"step": pl.Int64, "start": pl.Int64, "end": pl.Int64},
    )
    return SteadySteps(windows, trace.kernels, _busy(trace.kernels))


def in_steps(table: pl.DataFrame, trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the rows that belong to the steps; all of them where there are none."""
    if not trace.steps.height:
        return table
    return table.join(steady.windows, on="step", how="semi", maintain_order="left")


def are_in_steps(table: pl.DataFrame, trace: Trace, steady: SteadySteps) -> pl.Series:
    """Return which rows belong to the steps; all of them where there are none."""
    if not trace.steps.height:
        return pl.repeat(value=True, n=table.height, eager=True)
    return known(table["step"].is_in(steady.windows["step"].implode()))


def _busy(kernels: pl.DataFrame) -> int:
    work = busiest_device(kernels).sort("ts")
    return int(work.select(covered(pl.col("ts"), END).sum()).item())
