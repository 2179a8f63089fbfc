"""What a step waits for, for all of its time: the GPU's work, or what the host did.

Told of the steps as they go without the profiler, replayed at their likely pace: while
recorded, the host is slower and the GPU idles more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.time.idle_causes import UNKNOWN, causes_in
from traceq.intervals import disjoint
from traceq.model.names import TRANSFER

if TYPE_CHECKING:
    from traceq.analysis.replay.simulation import Replay, TimeScale
    from traceq.trace import Trace

# What the GPU does, by the kinds of its kernels; a copy to or from the host is its own.
_COMPUTING = ("gemm", "attention", "conv")
COMPUTING = "computing"
MOVING = "moving memory"
COMMUNICATING = "communicating"
COPYING = "copying to or from the host"
BETWEEN = "between kernels"
ON_GPU = (COMPUTING, MOVING, COMMUNICATING, COPYING, BETWEEN)


@dataclass(frozen=True)
class Bottleneck:
    """What a step waits for."""

    waits: pl.DataFrame
    """``what`` it waited for and how long, ``time``, per step, longest first. What is
    not in ON_GPU is what the host did while the GPU had nothing to do."""
    places: pl.DataFrame
    """Where the GPU waited for launches: ``file``, ``line``, ``function``, ``time``."""
    steps: pl.DataFrame
    """Each ``step``: how long the GPU had work, ``busy``, and waited for the host,
    ``idle``; none where the trace has no steps."""
    step_ns: float

    @property
    def idle(self) -> float:
        """How long the GPU waits for the host in a step."""
        on_gpu = pl.col("what").is_in(ON_GPU)
        return float(self.waits.filter(~on_gpu)["time"].sum())


def bottleneck(trace: Trace, replay: Replay, scale: TimeScale) -> Bottleneck:
    """Return what a step waits for when host and GPU go at this pace."""
    steps = replay.model.steps
    step_ns = replay.run(scale=scale).step_ns
    work = _with_idle(trace, replay.timeline(scale), step_ns * steps)
    idle = work.filter(pl.col("idle") > 0)
    on_gpu = _by_kind(trace, work)
    between = float(idle.filter(~pl.col("launched"))["idle"].sum())
    known = float(on_gpu["time"].sum()) + between
    host = _by_cause(trace, replay, scale, idle.filter("launched"))
    # The host's part is what the GPU leaves of the step, by what the host did then.
    left = max(0.0, step_ns * steps - known)
    found = pl.concat(
        [
            on_gpu,
            pl.DataFrame({"what": [BETWEEN], "time": [between]}),
            host.with_columns(pl.col("time") * left),
        ]
    )
    waits = (
        found.filter(pl.col("time") > 0)
        .with_columns(pl.col("time") / steps)
        .sort("time", "what", descending=[True, False])
    )
    places = _places(trace, idle.filter("launched"), steps)
    return Bottleneck(waits, places, _by_step(trace, work), step_ns)


def _with_idle(trace: Trace, work: pl.DataFrame, length: float) -> pl.DataFrame:
    """Add how long the busiest GPU had idled before each piece of its work."""
    devices = trace.kernels["device"].gather(work["id"])
    most = work.group_by(device=devices).agg(pl.col("dur").sum()).sort("dur")
    mine = work.filter(devices.eq_missing(most["device"].last())).sort("begin")
    # The step before ended as this one does.
    before = pl.col("done").max() - length
    reached = pl.col("done").cum_max().shift(1).fill_null(before)
    return mine.with_columns(
        idle=(pl.col("begin") - reached).clip(lower_bound=0),
        busy=(pl.col("done") - pl.max_horizontal("begin", reached)).clip(lower_bound=0),
    )


def _by_kind(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    kernels = trace.kernels.select("kind", "name")
    kind, name = (kernels[column].gather(work["id"]) for column in kernels.columns)
    what = (
        pl.when(name.cast(pl.String).str.contains(TRANSFER))
        .then(pl.lit(COPYING))
        .when(kind == "communication")
        .then(pl.lit(COMMUNICATING))
        .when(kind.is_in(_COMPUTING))
        .then(pl.lit(COMPUTING))
        .otherwise(pl.lit(MOVING))
    )
    return work.group_by(what=what).agg(time=pl.col("busy").sum())


def _by_cause(
    trace: Trace, replay: Replay, scale: TimeScale, idle: pl.DataFrame
) -> pl.DataFrame:
    """Return what the host did while the GPU waited for a launch, as shares."""
    since = replay.moments(idle["worked"] - idle["idle"], scale)
    spans = disjoint(
        pl.DataFrame({"start": since, "end": idle["at"]}).filter(
            pl.col("end") > pl.col("start")
        )
    )
    causes = causes_in(trace, spans)
    total = int(causes["time"].sum())
    if not total:
        return pl.DataFrame({"what": [UNKNOWN], "time": [1.0]})
    return causes.select(what="cause", time=pl.col("time") / total)


def _by_step(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    waited = pl.col("idle").filter("launched").sum()
    return (
        work.with_columns(step=trace.kernels["step"].gather(work["id"]))
        .drop_nulls("step")
        .group_by("step")
        .agg(busy=(pl.col("busy") + pl.col("idle")).sum() - waited, idle=waited)
        .sort("step")
    )


def _places(trace: Trace, idle: pl.DataFrame, steps: int) -> pl.DataFrame:
    place = trace.kernels.select("file", "line", "function")
    return (
        place.select(pl.all().gather(idle["id"]))
        .with_columns(time=idle["idle"] / steps)
        .drop_nulls("file")
        .group_by("file", "line", "function")
        .agg(pl.col("time").sum())
        .with_columns(pl.col("file", "function").cast(pl.String))
        .sort("time", "file", "line", descending=[True, False, False])
    )
