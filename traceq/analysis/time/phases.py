"""Duration of each phase of a step: forward, backward, optimizer, data, other.

Each instant of a step belongs to one phase, that of the GPU's work. While the GPU idles
it waits for the next work of the step, so the time counts for the phase of that work;
if the host loads data meanwhile, it counts for data. The rest after the last work of a
step is other. Without a GPU the host's outermost ops are the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import stdev
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.gpu_idle import gaps_in
from traceq.analysis.base.steady import steady_steps
from traceq.analysis.time.idle_causes import LOADING, host_spans
from traceq.common.intervals import disjoint, overlap, spans
from traceq.graph.devices import busiest_device
from traceq.model.schema import PHASES

if TYPE_CHECKING:
    from traceq.model.trace import Trace

STEP = "step"
"""The name of the row for all phases together."""
_DATA, _OTHER = "data", "other"


@dataclass(frozen=True)
class PhaseTime:
    """Duration of a phase as recorded, in ns of a steady-state step."""

    phase: str
    wall_ns: float
    """The mean."""
    min_ns: int
    max_ns: int
    busy_ns: float
    """The part in which the GPU, or without one the host, did its work."""
    warmup_ns: float | None
    """Mean duration in warm-up steps; none without a warm-up."""
    std_ns: float | None = None
    """Standard deviation among the steps; none of one step."""
    estimated_ns: float | None = None
    """Duration without the profiler, by replay; none without GPU work."""


def by_phase(trace: Trace) -> tuple[PhaseTime, ...]:
    """Return the phases that steps have, in order, and then the step itself."""
    times = phase_times(trace)
    phases = [
        _mean(times, phase, pl.col("phase") == phase)
        for phase in PHASES
        if times.filter("averaged", pl.col("phase") == phase).height
    ]
    return (*phases, _mean(times, STEP, pl.lit(value=True)))


def _mean(times: pl.DataFrame, name: str, chosen: pl.Expr) -> PhaseTime:
    # A phase that a step does not have takes no time in it.
    of_steps = (
        times.with_columns(pl.col("wall", "busy") * chosen.cast(pl.Int64))
        .group_by("step", "warmup", "averaged")
        .agg(pl.col("wall", "busy").sum())
    )
    steady, warm = (of_steps.filter(which) for which in ("averaged", "warmup"))
    walls = steady["wall"].to_list() or [0]
    return PhaseTime(
        phase=name,
        wall_ns=sum(walls) / len(walls),
        min_ns=min(walls),
        max_ns=max(walls),
        busy_ns=float(steady["busy"].sum()) / len(walls),
        warmup_ns=float(warm["wall"].sum()) / warm.height if warm.height else None,
        std_ns=stdev(walls) if len(walls) > 1 else None,
    )


def phase_times(trace: Trace) -> pl.DataFrame:
    """Return a row for each step, warm-up included, and each phase that it has.

    ``wall`` is how long the phase took as recorded, which adds up to the step; ``busy``
    is the part of it in which the GPU, or without one the host, did its work.
    """
    steps = trace.steps.select("step", "warmup", "averaged", "start", "end")
    if not steps.height:
        steps = steady_steps(trace).windows.with_columns(
            warmup=pl.lit(value=False), averaged=pl.lit(value=True)
        )
    work = _work(trace)
    return (
        pl.concat([_busy(work, steps), _idle(trace, work, steps)])
        .group_by("start", "phase")
        .agg(wall=pl.col("ns").sum(), busy=pl.col("ns").filter("worked").sum())
        .filter(pl.col("wall") > 0)
        .join(steps, on="start", how="left")
        .sort("start", pl.col("phase").cast(pl.Enum(PHASES)))
        .select("step", "warmup", "averaged", "phase", "wall", "busy")
    )


def _work(trace: Trace) -> pl.DataFrame:
    """Return the events that count as work, with their phase."""
    if trace.facts.gpu:
        work = busiest_device(trace.kernels)
    else:
        work = trace.host_ops.filter(pl.col("parent").is_null())
    phase = pl.col("phase").cast(pl.String).fill_null(_OTHER)
    return work.select("id", "ts", "dur", "step", phase=phase)


def _busy(work: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the busy time of each phase in each step; each instant counts once."""
    own = disjoint(spans(work).with_columns(work["phase"]))
    return pl.concat(
        steps.select(
            "start",
            phase=pl.lit(phase),
            ns=overlap(steps, own.filter(pl.col("phase") == phase)),
            worked=pl.lit(value=True),
        )
        for phase in PHASES
    )


def _idle(trace: Trace, work: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the idle time of each step, by the phase that it waited for."""
    # Each lies in one step: they are cut where steps begin and end.
    gaps = gaps_in(work, steps).sort("start")
    loading = overlap(gaps, host_spans(trace, [LOADING]))
    waited = (
        gaps.select("end", begin="start", id="kernel")
        .with_columns(loading.alias("loading"))
        .join(
            work.select("id", "phase", of="step"),
            on="id",
            how="left",
            maintain_order="left",
        )
        .join_asof(
            steps.sort("start").select("step", "start"),
            left_on="begin",
            right_on="start",
        )
    )
    next_phase = pl.when(pl.col("of").eq_missing(pl.col("step"))).then("phase")
    columns = {"worked": pl.lit(value=False)}
    return pl.concat(
        [
            waited.select(
                "start",
                phase=next_phase.fill_null(_OTHER),
                ns=pl.col("end") - pl.col("begin") - pl.col("loading"),
                **columns,
            ),
            waited.select("start", phase=pl.lit(_DATA), ns="loading", **columns),
        ]
    )
