"""Kinds of steps: typical ones, and long ones that recur."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns.iterations import iterations
from traceq.graph.steps import cut_off
from traceq.model.lint_report import StepKinds
from traceq.model.run import are_longer

if TYPE_CHECKING:
    from traceq.model.run import StepTime, Window
    from traceq.model.trace import Trace

# Heuristic thresholds: without a measurement, recorded steps are of two kinds if both
# their times and their work differ by these factors: a pause does no work.
_TIMES_APART = 1.5
_WORK_APART = 1.2


def step_kinds(trace: Trace) -> StepKinds | None:
    """Return the kinds of steps; None if all are alike.

    What was measured without the profiler goes before what the recorded steps show.
    """
    steps = trace.steps.filter(~pl.col("warmup"), ~cut_off(trace.steps))
    if not steps.height:
        return None
    timed = trace.rank.step_time if trace.rank else None
    if timed and timed.long:
        return _measured(steps, timed, trace.rank.window if trace.rank else "")
    return _as_recorded(trace, steps)


def _measured(steps: pl.DataFrame, timed: StepTime, window: Window) -> StepKinds | None:
    if timed.long is None:
        return None
    is_long = timed.long.among(steps["time"].to_list())
    if window == "typical":
        is_long = [False] * len(is_long)
    return StepKinds(
        **_counts(steps, is_long),
        window=window,
        period=timed.period,
        measured=True,
        long_ns=timed.long.ns,
        typical_ns=timed.long.typical_ns,
        long_share=timed.long_share,
        long_time_share=timed.long_time_share,
    )


def _as_recorded(trace: Trace, steps: pl.DataFrame) -> StepKinds | None:
    """Return the kinds that differ both in time and in work."""
    is_long = are_longer(steps["time"].to_list(), _TIMES_APART)
    # Prefill and decode are told apart by what they are, and reported as such.
    if not any(is_long) or iterations(trace).height:
        return None
    ops = trace.host_ops.group_by("step").len("ops")
    work = (
        steps.join(ops, on="step", how="left", maintain_order="left")
        .select(work=pl.col("kernels") + pl.col("ops").fill_null(0), time="time")
        .with_columns(long=pl.Series(is_long))
    )
    long, typical = (
        work.filter(which).select(pl.col("work", "time").mean()).row(0)
        for which in (pl.col("long"), ~pl.col("long"))
    )
    if max(long[0], typical[0]) < _WORK_APART * min(long[0], typical[0]):
        return None
    return StepKinds(
        **_counts(steps, is_long),
        window="",
        period=None,
        measured=False,
        long_ns=long[1],
        typical_ns=typical[1],
        long_share=None,
        long_time_share=None,
    )


def _counts(steps: pl.DataFrame, is_long: list[bool]) -> dict[str, int]:
    averaged = steps["averaged"]
    return {
        "recorded": steps.height,
        "recorded_long": sum(is_long),
        "averaged": int(averaged.sum()),
        "averaged_long": int((averaged & pl.Series(is_long)).sum()),
    }
