"""Time of a step by cause: the GPU's work, and the host's work while the GPU idles.

The steps are those without the profiler, replayed at their most likely speed: under the
profiler the host is slower and the GPU idles more.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl
from msgspec import Struct

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.time.gpu_causes import BETWEEN, COMMUNICATING, ON_GPU, gpu_causes
from traceq.analysis.time.idle_causes import UNKNOWN, causes_in
from traceq.common.intervals import covered, disjoint, uncovered
from traceq.graph.devices import busiest_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.replay.simulation import Change, Replay, TimeScale
    from traceq.model.trace import Trace

# The needed columns of the work in replayed steps.
_WORK = ["id", "launched_at", "host_ns", "begin", "done", "by_launch"]


class Bottleneck(Struct, frozen=True, dict=True):
    """The time of a step by cause."""

    causes: pl.DataFrame
    """``cause`` and ``time`` per step, longest first. What is not in ON_GPU is what the
    host did while the GPU had nothing to do."""
    steps: pl.DataFrame
    """Each ``step``: how long the GPU had work, ``busy``, and waited for the host,
    ``idle``; none where the trace has no steps."""
    step_ns: float
    """Duration of a step in the replay."""

    @cached_property
    def rows(self) -> list[tuple[str, float]]:
        """Cause and time per step."""
        return self.causes.rows()

    @cached_property
    def step_rows(self) -> list[tuple[int, float, float]]:
        """Each step with its GPU time and its wait for the host."""
        return self.steps.rows()

    @property
    def idle_ns(self) -> float:
        """Time per step in which the GPU waits for the host."""
        on_gpu = pl.col("cause").is_in(ON_GPU)
        return float(self.causes.filter(~on_gpu)["time"].sum())


def bottleneck(trace: Trace, replay: Replay, scale: TimeScale) -> Bottleneck:
    """Return the time of a step by cause, with host and GPU at these speeds."""
    steps = replay.model.steps
    step_ns = replay.run(scale=scale).step_ns
    work = simulated_work(trace, replay, scale)
    between = pl.DataFrame({"cause": [BETWEEN], "time": [_between_ns(work)]})
    whole = step_ns * steps
    on_gpu = pl.concat([_by_kind(trace, work, whole), between])
    late = work.filter("by_launch", pl.col("idle") > 0)
    # The host's part is what the GPU leaves of the step, by what the host did then.
    gpu_ns = float(on_gpu["time"].sum())
    causes = pl.concat(
        [
            # Where work overlaps on its own stream, it adds up to more than the step.
            on_gpu.with_columns(pl.col("time") * min(1.0, whole / max(1.0, gpu_ns))),
            _by_cause(trace, replay, scale, late).with_columns(
                pl.col("time") * max(0.0, whole - gpu_ns)
            ),
        ]
    )
    return Bottleneck(
        causes=causes.filter(pl.col("time") > 0)
        .with_columns(pl.col("time") / steps)
        .sort("time", "cause", descending=[True, False]),
        steps=_by_step(trace, work),
        step_ns=step_ns,
    )


class LateWork(Struct, frozen=True):
    """GPU work in the replayed steps whose launch was late."""

    work: pl.DataFrame
    """The replay's timeline of this work, with ``idle``: the GPU's wait before each
    row."""
    idle_ns: float
    """Time that the GPU waits for the host, over all steps."""
    step_ns: float
    """Duration of a step."""


def late_work(
    trace: Trace, replay: Replay, scale: TimeScale, changes: Sequence[Change] = ()
) -> LateWork:
    """Return the work that was launched late, after these changes."""
    work = simulated_work(trace, replay, scale, changes)
    step_ns = replay.run(changes, scale).step_ns
    gpu_ns = float(work["busy"].sum()) + _between_ns(work)
    return LateWork(
        work.filter("by_launch", pl.col("idle") > 0),
        max(0.0, step_ns * replay.model.steps - gpu_ns),
        step_ns,
    )


def gpu_busy(
    trace: Trace, replay: Replay, scale: TimeScale, changes: Sequence[Change] = ()
) -> float:
    """Return the fraction of a step in which the GPU has work, after these changes.

    The gaps between kernels that were launched in time count as work.
    """
    whole = replay.run(changes, scale).step_ns * replay.model.steps
    work = simulated_work(trace, replay, scale, changes)
    busy = float(work["busy"].sum()) + _between_ns(work)
    return min(1.0, busy / whole) if whole else 0.0


def simulated_work(
    trace: Trace, replay: Replay, scale: TimeScale, changes: Sequence[Change] = ()
) -> pl.DataFrame:
    """Return the work of the busiest GPU, with ``busy`` and ``idle`` before it.

    Of work that overlaps each instant is busy once.
    """
    if changes:
        return _work_after(trace, replay, scale, changes)
    return _work_before(trace, replay, scale)


@cached_per_trace
def _work_before(trace: Trace, replay: Replay, scale: TimeScale) -> pl.DataFrame:
    """Return the work without changes, which is asked for several times."""
    return _work_after(trace, replay, scale, ())


def _work_after(
    trace: Trace, replay: Replay, scale: TimeScale, changes: Sequence[Change]
) -> pl.DataFrame:
    work, chosen = replay.timeline(scale, changes)[_WORK], _on_busiest(trace, replay)
    if not chosen.all():
        work = work.filter(chosen)
    if not work["begin"].is_sorted():
        work = work.sort("begin")
    whole = replay.run(changes, scale).step_ns * replay.model.steps
    # The step before ended as this one does.
    since = pl.col("done").max() - whole
    return work.with_columns(
        idle=uncovered(pl.col("begin"), pl.col("done"), since),
        busy=covered(pl.col("begin"), pl.col("done"), since),
    )


@cached_per_trace
def _on_busiest(trace: Trace, replay: Replay) -> pl.Series:
    """Return which of the work is that of the busiest GPU."""
    ids = replay.work["id"]
    work = replay.work.select("dur", device=trace.kernels["device"][ids])
    device = busiest_device(work)["device"].first()
    return work["device"].eq_missing(pl.Series([device], dtype=work["device"].dtype))


def _between_ns(work: pl.DataFrame) -> float:
    """Return the GPU's idle time between kernels that were launched in time."""
    return float(work["idle"].filter(~work["by_launch"]).sum())


def _by_kind(trace: Trace, work: pl.DataFrame, whole: float) -> pl.DataFrame:
    """Return the busy time by cause; communication has what other work leaves."""
    work = work.with_columns(cause=gpu_causes(trace, work["id"]))
    sends = pl.col("cause") == COMMUNICATING
    if not work.select(sends.any()).item():
        return work.group_by("cause").agg(time=pl.col("busy").sum())
    since = float(work["done"].max() or 0) - whole  # type: ignore[arg-type]  # a number
    others = work.filter(~sends).with_columns(
        busy=covered(pl.col("begin"), pl.col("done"), pl.lit(since))
    )
    exposed = float(work["busy"].sum()) - float(others["busy"].sum())
    return pl.concat(
        [
            others.group_by("cause").agg(time=pl.col("busy").cast(pl.Float64).sum()),
            pl.DataFrame({"cause": [COMMUNICATING], "time": [max(0.0, exposed)]}),
        ]
    )


def _by_cause(
    trace: Trace, replay: Replay, scale: TimeScale, late: pl.DataFrame
) -> pl.DataFrame:
    """Return the host's activity while the GPU waits for a launch, as fractions."""
    since = replay.moments(late["host_ns"] - late["idle"], scale)
    spans = disjoint(
        pl.DataFrame({"start": since, "end": late["launched_at"]}).filter(
            pl.col("end") > pl.col("start")
        )
    )
    causes = causes_in(trace, spans)
    total = int(causes["time"].sum())
    if not total:
        return pl.DataFrame({"cause": [UNKNOWN], "time": [1.0]})
    return causes.select("cause", time=pl.col("time") / total)


def _by_step(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    waited = pl.col("idle").filter("by_launch").sum()
    return (
        work.with_columns(step=trace.kernels["step"][work["id"]])
        .drop_nulls("step")
        .group_by("step")
        .agg(busy=(pl.col("busy") + pl.col("idle")).sum() - waited, idle=waited)
        .sort("step")
    )
