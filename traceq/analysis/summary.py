"""What there is to say of a trace at first sight, as numbers per step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.steady import SteadySteps, steady_steps
from traceq.analysis.memory.trace_peak import MemoryPeak, peak_memory
from traceq.analysis.replay.bottleneck import Bottleneck, bottleneck
from traceq.analysis.replay.calibration import calibrate
from traceq.analysis.replay.critical_path import CriticalPath, critical_path
from traceq.analysis.replay.model import build_model
from traceq.analysis.replay.simulation import Replay
from traceq.analysis.time.gpu_time import (
    by_host_op,
    by_kernel,
    by_kind_and_phase,
    by_op,
)
from traceq.analysis.time.idle_causes import idle_causes
from traceq.analysis.time.mfu import Compute, compute

if TYPE_CHECKING:
    from traceq.model.facts import Facts
    from traceq.model.run import Rank, Run
    from traceq.trace import Trace

SMALL_KERNEL_NS = 5_000


@dataclass(frozen=True)
class Summary:
    """One trace at first sight. Times are nanoseconds, per step where not said."""

    facts: Facts
    devices: pl.DataFrame
    steps: pl.DataFrame
    """The table of steps, warm-up and all."""
    steady: SteadySteps
    """What the averages are over."""
    idle: pl.DataFrame
    """How long the GPU idled, by what the host did, over all of the part."""
    kinds: pl.DataFrame
    """GPU time by kind and phase, over all of the part."""
    ops: pl.DataFrame
    """GPU time by op, or host time where there is no GPU, over all of the part."""
    kernels: pl.DataFrame
    """GPU time by kernel, over all of the part."""
    launches: float
    """Calls that launch GPU work."""
    small_kernels: float
    """Share of the kernels that are shorter than SMALL_KERNEL_NS."""
    memory: MemoryPeak | None
    compute: Compute
    bottleneck: Bottleneck | None = None
    """What a step waits for, as it goes without the profiler; none without a GPU."""
    path: CriticalPath | None = None
    """The chain of work that a step is as long as, where it was asked for."""
    measured: bool = False
    """Whether what a step takes without the profiler is known."""
    run: Run | None = None
    """The run it was recorded in, if it was loaded from a run folder."""
    rank: Rank | None = None
    """The process of that run."""

    @property
    def step_time(self) -> float:
        """Duration of a step, on average."""
        return self.steady.time / self.steady.count

    @property
    def gpu_busy(self) -> float:
        """Share of the time in which the GPU ran something."""
        return self.steady.gpu_busy / self.steady.time if self.steady.time else 0.0

    @property
    def gpu_time(self) -> int:
        """Durations of all kernels of the part, which may overlap."""
        return int(self.steady.kernels["dur"].sum())


def summarise(
    trace: Trace, *, step_ns: int | None = None, critical: bool = False
) -> Summary:
    """Return what there is to say of a trace at first sight.

    ``step_ns`` is what a step takes without the profiler, if the run does not say.
    """
    steady = steady_steps(trace)
    step_ns = step_ns or trace.step_ns
    replay = Replay(build_model(trace, steady)) if trace.facts.gpu else None
    scale = calibrate(replay, step_ns).likely if replay else None
    kernels = steady.kernels.filter(pl.col("activity") == "kernel")
    small = (kernels["dur"] < SMALL_KERNEL_NS).mean()
    with_launch = steady.kernels["launch"].drop_nulls().n_unique()
    return Summary(
        facts=trace.facts,
        devices=trace.devices.filter("used"),
        steps=trace.steps,
        steady=steady,
        idle=idle_causes(trace, steady),
        kinds=by_kind_and_phase(steady.kernels),
        ops=by_op(trace, steady.kernels)
        if steady.kernels.height
        else by_host_op(trace, steady.windows),
        kernels=by_kernel(steady.kernels),
        launches=with_launch / steady.count,
        small_kernels=small if isinstance(small, float) else 0.0,
        memory=peak_memory(trace),
        compute=compute(trace, steady),
        bottleneck=bottleneck(trace, replay, scale) if replay and scale else None,
        path=critical_path(trace, replay, scale)
        if critical and replay and scale
        else None,
        measured=step_ns is not None,
        run=trace.run,
        rank=trace.rank,
    )
