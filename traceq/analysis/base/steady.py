"""Steady-state steps, without warm-up: the steps that averages are taken over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from msgspec import Struct

from traceq.analysis.base.cached import cached_per_trace
from traceq.common.expressions import END, constant, known
from traceq.common.intervals import covered
from traceq.graph.devices import busiest_device

if TYPE_CHECKING:
    from traceq.model.trace import Trace


class SteadySteps(Struct, frozen=True):
    """The steps without warm-up, or the whole trace if it has no steps."""

    windows: pl.DataFrame
    """``step``, ``start`` and ``end``; without steps one row, whose step is null."""
    kernels: pl.DataFrame
    """The GPU work of these steps."""
    gpu_busy: int
    """Nanoseconds in which the busiest GPU ran work of these steps."""

    @property
    def count(self) -> int:
        """Number of steps; 1 for a trace without steps."""
        return self.windows.height

    @property
    def time(self) -> int:
        """Total time of the steps in nanoseconds."""
        return int((self.windows["end"] - self.windows["start"]).sum())


@cached_per_trace
def steady_steps(trace: Trace) -> SteadySteps:
    """Return the steady-state steps of a trace, or all of it where it has no steps."""
    steps = trace.steps.filter("averaged")
    if steps.height:
        windows = steps.select("step", "start", "end")
        kernels = _rows_where(trace.kernels, _among(trace.kernels, trace, windows))
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
    if not trace.steps.height or not table.height:
        return table
    if table is trace.runtime:
        return _calls(trace, steady)
    return _rows_where(table, _among(table, trace, steady.windows))


def are_in_steps(table: pl.DataFrame, trace: Trace, steady: SteadySteps) -> pl.Series:
    """Return which rows belong to the steps; all of them where there are none."""
    if not trace.steps.height:
        return constant(value=True, count=table.height, dtype=pl.Boolean)
    return _among(table, trace, steady.windows)


@cached_per_trace
def _calls(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the runtime calls of the steps, memoized."""
    return _rows_where(trace.runtime, _among(trace.runtime, trace, steady.windows))


def _among(table: pl.DataFrame, trace: Trace, windows: pl.DataFrame) -> pl.Series:
    """Return which rows of a table of the trace belong to these steps."""
    step = table["step"]
    steps, others = _steps(trace, windows)
    if not steps:
        return constant(value=False, count=table.height, dtype=pl.Boolean)
    first, last = min(steps), max(steps)
    if any(first < other < last for other in others):
        return known(step.is_in(windows["step"].implode()))
    # No other step is in between. It takes a fraction of looking numbers up.
    return known((step >= first) & (step <= last))


@cached_per_trace
def _steps(trace: Trace, windows: pl.DataFrame) -> tuple[set[int], set[int]]:
    """Return the numbers of these steps, and of the others that the trace has."""
    steps = {*windows["step"].drop_nulls()}
    return steps, {*trace.steps["step"]} - steps


def _rows_where(table: pl.DataFrame, rows: pl.Series) -> pl.DataFrame:
    """Return the rows of a table; the table itself if that is all of them."""
    return table if rows.all() else table.filter(rows)


def _busy(kernels: pl.DataFrame) -> int:
    work = busiest_device(kernels).sort("ts")
    return int(work.select(covered(pl.col("ts"), END).sum()).item())
