"""Duration of phases and regions of a step without the profiler, by replay.

Python stacks slow down the forward more than the backward, which runs no Python. In the
replayed steps the host is as fast as without the profiler. The GPU's wait before work
counts for the phase of that work, or for data while the host loads some.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.replay.bottleneck import simulated_work
from traceq.analysis.replay.bound import calibration_of, replay_of
from traceq.analysis.time.idle_causes import LOADING, host_spans
from traceq.common.intervals import overlap

if TYPE_CHECKING:
    from traceq.analysis.replay.simulation import Replay, TimeScale
    from traceq.model.trace import Trace

_DATA, _OTHER = "data", "other"


def estimated_phases(trace: Trace, step_ns: int | None = None) -> dict[str, float]:
    """Return the time of each phase in a step without the profiler, in ns.

    They add up to the step: the measured one, where there is one. Nothing without GPU
    work.
    """
    if not trace.facts.gpu:
        return {}
    replay, scale = replay_of(trace), calibration_of(trace, step_ns).likely
    work = simulated_work(trace, replay, scale)
    if work.is_empty():
        return {}
    loading = _loading(trace, replay, scale, work)
    phase = trace.kernels["phase"][work["id"]].cast(pl.String).fill_null(_OTHER)
    times = work.select(
        phase=phase, ns=pl.col("busy") + pl.col("idle") - loading
    ).extend(pl.DataFrame({"phase": [_DATA], "ns": [float(loading.sum())]}))
    sums = times.group_by("phase").agg(pl.col("ns").sum()).filter(pl.col("ns") > 0)
    whole = float(sums["ns"].sum())
    step = step_ns or replay.run(scale=scale).step_ns
    return {name: ns * step / whole for name, ns in sums.iter_rows()}


def _loading(
    trace: Trace, replay: Replay, scale: TimeScale, work: pl.DataFrame
) -> pl.Series:
    """Return how long the host loads data in the GPU's wait before each work."""
    since = replay.moments(work["host_ns"] - work["idle"], scale)
    waits = pl.DataFrame({"start": since, "end": work["launched_at"]})
    waits = waits.with_columns(pl.max_horizontal("start", "end").alias("end"))
    length = (waits["end"] - waits["start"]).clip(1)
    share = overlap(waits, host_spans(trace, [LOADING])) / length
    return (work["idle"] * share).cast(pl.Float64)


def estimated_host(
    trace: Trace, calls: pl.DataFrame, step_ns: int | None = None
) -> pl.Series:
    """Return the host's time in calls without the profiler: ``ts`` and ``host``.

    Waits for the GPU are not in it. Null without GPU work.
    """
    if not trace.facts.gpu:
        return pl.repeat(None, calls.height, dtype=pl.Float64, eager=True)
    replay, scale = replay_of(trace), calibration_of(trace, step_ns).likely
    edges, reached = replay.host_time(scale)
    start, end = calls["ts"], calls["ts"] + calls["host"]
    return _at(edges, reached, end) - _at(edges, reached, start)


def _at(edges: pl.Series, reached: pl.Series, moments: pl.Series) -> pl.Series:
    """Return how much the host has worked until each moment."""
    last = max(0, len(edges) - 2)
    part = (edges.search_sorted(moments, side="right").cast(pl.Int64) - 1).clip(0, last)
    start, length = edges[part], edges[part + 1] - edges[part]
    inside = ((moments - start) / length).fill_nan(0).clip(0, 1)
    return reached[part] + inside * (reached[part + 1] - reached[part])
