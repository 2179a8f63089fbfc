"""Stalls of operators in recorded steps that steps without the profiler do not have.

Of two recorded steps one may happen to stop for longer than the others of a run do.
What slow operators cost one step more than another differs between steps, and so it
shows in the steps that were timed without the profiler: beyond their median there is no
more of it than their mean is above it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from msgspec import structs

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.time.op_calls import op_calls, own_segments
from traceq.common.intervals import Cover

if TYPE_CHECKING:
    from traceq.analysis.replay.model import StepModel
    from traceq.model.trace import Trace

_PLACE = ("name", "file", "line", "function")
# Less than this share of the steps is not worth a correction. Heuristic threshold.
_LEAST = 0.02
_NONE = {"op": pl.UInt32, "unseen": pl.Int64}


@cached_per_trace
def unseen_stalls(trace: Trace) -> pl.DataFrame:
    """Return what of slow calls the timed steps do not have: ``op`` and ``unseen``.

    What the steps have in common they may all have: at one place as much as in half of
    them, and at changing places as much as in the step with the least of it.
    """
    nothing = pl.DataFrame(schema=_NONE)
    above = _above_median(trace)
    steps = trace.steps.filter("averaged").height
    if above is None or steps < 2:  # noqa: PLR2004 - one has nothing in common
        return nothing
    searched = pl.col("new") & pl.col("planned")
    calls = op_calls(trace).filter(pl.col("excess") > 0, ~searched, ~pl.col("loads"))
    if not calls.height:
        return nothing
    calls = calls.select("op", "excess").hstack(
        trace.ops[["step", *_PLACE]][calls["op"]]
    )
    irregular = _irregular(calls, steps)
    by_step = irregular.group_by("step").agg(all=pl.col("irregular").sum())
    sums = by_step["all"].to_list()
    common = min(sums) if len(sums) == steps else 0
    differing = sum(sums) - steps * common
    least = _LEAST * int(trace.steps.filter("averaged")["time"].sum())
    if differing - above * steps < least:
        return nothing
    goes = (1 - above * steps / differing) * (1 - common / pl.col("all"))
    return (
        irregular.join(by_step, on="step")
        .select("op", unseen=(pl.col("irregular") * goes).round().cast(pl.Int64))
        .filter(pl.col("unseen") > 0)
    )


def _above_median(trace: Trace) -> int | None:
    """Return how far the measured step is above the median one; None if not known."""
    timed = trace.rank.step_time if trace.rank else None
    if timed is None or trace.step_ns is None or timed.last_level_ns is not None:
        return None
    return max(0, trace.step_ns - timed.median_ns)


def _irregular(calls: pl.DataFrame, steps: int) -> pl.DataFrame:
    """Return each call's part of what its place takes beyond what half the steps have.

    Without the calls of places that take no more than that.
    """
    places = calls.group_by(*_PLACE, "step").agg(all=pl.col("excess").sum())
    # Of steps that have nothing there it is 0.
    half = (steps - 1) // 2
    lower = pl.col("all").sort(descending=True).get(steps - 1 - half, null_on_oob=True)
    usual = places.group_by(_PLACE).agg(usual=lower.fill_null(0))
    return (
        calls.join(places, on=[*_PLACE, "step"], nulls_equal=True)
        .join(usual, on=_PLACE, nulls_equal=True)
        .filter(pl.col("all") > pl.col("usual"))
        .with_columns(
            irregular=pl.col("excess") * (1 - pl.col("usual") / pl.col("all"))
        )
    )


def without_unseen(model: StepModel, trace: Trace) -> StepModel:
    """Return the model without the time of stalls that the timed steps do not have."""
    stalls = unseen_stalls(trace)
    if not stalls.height:
        return model
    # Of each piece of a call's own time the share goes that is a stall.
    segments = own_segments(trace).join(stalls, on="op")
    length = pl.col("end") - pl.col("start")
    share = pl.col("unseen") / length.sum().over("op")
    gone = (length * share).cast(pl.Int64)
    return without_time(model, segments.select("start", end=pl.col("start") + gone))


def without_time(model: StepModel, spans: pl.DataFrame) -> StepModel:
    """Return the model without the host's time in these spans."""
    pieces = model.host
    edges = pl.concat([pieces["start"][:1], pieces["end"]])
    part, covered = Cover(spans).between(edges)
    some = pieces[part]
    own = some["own"] * (1 - covered / (some["end"] - some["start"])).clip(0)
    return structs.replace(
        model,
        host=pieces.with_columns(pieces["own"].clone().scatter(part, own)),
    )
