"""What there is to say of a trace at first sight, as numbers per step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.compute import Compute, compute
from traceq.analysis.gpu_time import by_host_op, by_kernel, by_kind_and_phase, by_op
from traceq.analysis.idle import idle_causes
from traceq.analysis.memory import MemoryPeak, peak_memory
from traceq.analysis.steady import Steady, steady

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
    part: Steady
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
    run: Run | None = None
    """The run it was recorded in, if it was loaded from a run folder."""
    rank: Rank | None = None
    """The process of that run."""

    @property
    def step_time(self) -> float:
        """Duration of a step, on average."""
        return self.part.time / self.part.count

    @property
    def gpu_busy(self) -> float:
        """Share of the time in which the GPU ran something."""
        return self.part.gpu_busy / self.part.time if self.part.time else 0.0

    @property
    def gpu_time(self) -> int:
        """Durations of all kernels of the part, which may overlap."""
        return int(self.part.kernels["dur"].sum())


def summarise(trace: Trace) -> Summary:
    """Return what there is to say of a trace at first sight."""
    part = steady(trace)
    kernels = part.kernels.filter(pl.col("activity") == "kernel")
    small = (kernels["dur"] < SMALL_KERNEL_NS).mean()
    with_launch = part.kernels["launch"].drop_nulls().n_unique()
    return Summary(
        facts=trace.facts,
        devices=trace.devices.filter("used"),
        steps=trace.steps,
        part=part,
        idle=idle_causes(trace, part),
        kinds=by_kind_and_phase(part.kernels),
        ops=by_op(trace, part.kernels)
        if part.kernels.height
        else by_host_op(trace, part.windows),
        kernels=by_kernel(part.kernels),
        launches=with_launch / part.count,
        small_kernels=small if isinstance(small, float) else 0.0,
        memory=peak_memory(trace),
        compute=compute(trace, part),
        run=trace.run,
        rank=trace.rank,
    )
