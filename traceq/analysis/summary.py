"""Overview of a trace: the time of a step by part, as numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import SMALL_KERNEL_NS
from traceq.analysis.base.device import used_gpu
from traceq.analysis.base.gpu_idle import queued_ns
from traceq.analysis.base.graph_replays import replayed
from traceq.analysis.base.steady import SteadySteps, steady_steps
from traceq.analysis.memory.trace_peak import MemoryPeak, peak_memory
from traceq.analysis.patterns.attention_kernels import (
    AttentionParts,
    softmax_and_matmuls,
)
from traceq.analysis.patterns.parameters import trained_parameters
from traceq.analysis.replay.bound import bound_of, calibration_of, replay_of
from traceq.analysis.replay.critical_path import CriticalPath, critical_path
from traceq.analysis.replay.host_account import HostAccount, host_account
from traceq.analysis.replay.phases import estimated_phases
from traceq.analysis.replay.roofline_savings import recoverable_ns
from traceq.analysis.time.gpu_account import GpuAccount, gpu_account
from traceq.analysis.time.gpu_time import (
    by_host_op,
    by_kernel,
    by_kind_and_phase,
    by_op,
    longest_by_phase,
    non_gemm,
)
from traceq.analysis.time.idle_causes import idle_causes
from traceq.analysis.time.launch_overhead import launches_per_step
from traceq.analysis.time.mfu import Compute, compute
from traceq.analysis.time.modules import by_module
from traceq.analysis.time.phases import STEP, PhaseTime, by_phase
from traceq.analysis.time.roofline import roofline
from traceq.analysis.time.serving import Serving, serving
from traceq.analysis.time.tokens_per_step import Tokens, tokens_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.model.facts import Facts
    from traceq.model.lint_report import Bound, Replayed
    from traceq.model.run import Rank, Run
    from traceq.model.trace import Trace

# Of less of the kernels' time than this, a roofline tells too little.
_TOLD = 0.5


@dataclass(frozen=True)
class Summary:
    """Overview of one trace.

    Times are nanoseconds as recorded, per step unless they are called totals. Where a
    step was measured without the profiler, the rate of ``compute`` is that step's.
    """

    facts: Facts
    devices: pl.DataFrame
    steps: pl.DataFrame
    """The table of steps, warm-up included."""
    steady: SteadySteps
    """The steady-state steps that all averages are over."""
    idle: pl.DataFrame
    """Total GPU idle time, by host activity."""
    kinds: pl.DataFrame
    """GPU time by kind and phase; totals."""
    ops: pl.DataFrame
    """GPU time by op, or self time on the host where there is no GPU; totals."""
    kernels: pl.DataFrame
    """GPU time by kernel; totals."""
    launches: float
    """Calls that launch kernels or CUDA graphs; copies and sets are none."""
    small_kernels: float
    """Share of the kernels that are shorter than SMALL_KERNEL_NS."""
    memory: MemoryPeak | None
    compute: Compute
    bound: Bound
    """Bound of a step without the profiler: GPU or host."""
    path: CriticalPath | None = None
    """The critical path of a step, where it was asked for."""
    host: HostAccount | None = None
    """The account of the host's time, where it was asked for."""
    gpu: GpuAccount | None = None
    """The account of the GPU's busy time, where it was asked for."""
    run: Run | None = None
    """The run it was recorded in, if it was loaded from a run folder."""
    rank: Rank | None = None
    """The process of that run."""
    phases: tuple[PhaseTime, ...] = ()
    """Duration of each phase as recorded, then of the step."""
    longest: pl.DataFrame = field(default_factory=pl.DataFrame)
    """The kernel that takes most of each phase; totals."""
    modules: pl.DataFrame = field(default_factory=pl.DataFrame)
    """GPU time by module, layers of one class together; of a step."""
    attention: AttentionParts | None = None
    """Softmax and matmuls of attention, where these are kernels of their own."""
    tokens: Tokens | None = None
    """Tokens of a training step, where shapes were recorded."""
    roofline: Reached | None = None
    """Efficiency of the kernels relative to the roofline, where shapes were
    recorded."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the recording, as the user gave them."""
    replayed: Replayed | None = None
    """Kernels that replays of CUDA graphs ran, if there are any."""
    parameters: int | None = None
    """Parameters that get a gradient in a backward, where shapes were recorded."""
    doubtful_step_ns: int | None = None
    """A measured step that is not used: the recorded ones take another time."""
    serving: Serving | None = None
    """Cost of a token, if the trace is of serving or generation."""
    queued_ns: int = 0
    """Delay of the first GPU work behind work from before the recording, if any."""

    @property
    def non_gemm(self) -> pl.DataFrame:
        """Kernels that are no matmuls, by kind; totals."""
        return non_gemm(self.kernels)

    @property
    def step_time(self) -> float:
        """Mean duration of a step, as recorded."""
        return self.steady.time / self.steady.count

    @property
    def gpu_busy(self) -> float:
        """Fraction of the recorded steps in which the GPU ran something."""
        return self.steady.gpu_busy / self.steady.time if self.steady.time else 0.0

    @property
    def true_step(self) -> float:
        """Duration of a step: as measured without the profiler, else as recorded."""
        return self.bound.step_ns if self.bound.measured else self.step_time

    @property
    def true_gpu_busy(self) -> float:
        """Fraction of such a step in which the GPU has work."""
        return self.bound.gpu_busy if self.bound.measured else self.gpu_busy

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of ``true_step``, if the shapes show them."""
        return self.tokens.per_second(self.true_step) if self.tokens else None

    @property
    def gemm_share(self) -> float:
        """Fraction of the GPU's time in matmuls."""
        gemm = int(self.kinds.filter(pl.col("kind") == "gemm")["time"].sum())
        return gemm / self.gpu_time if self.gpu_time else 0.0

    @property
    def gpu_time(self) -> int:
        """Total duration of all kernels of the steps, which may overlap."""
        return int(self.steady.kernels["dur"].sum())


@dataclass(frozen=True)
class Reached:
    """Efficiency of the kernels of a step, relative to the roofline."""

    covered: float
    """Share of the kernels' time whose operations and bytes are known."""
    bounds: Mapping[str, float]
    """Shares of that by what bounds it: compute, bandwidth, latency."""
    efficiency: float
    """Share of that time that the peaks need."""
    recoverable_ns: float
    """Savings by replay, in a step without the profiler, if each slow op were as fast
    as kernels of its kind are elsewhere."""


def summarise(  # noqa: PLR0913 - parts that are asked for
    trace: Trace,
    *,
    step_ns: int | None = None,
    critical: bool = False,
    host: bool = False,
    gpu: bool = False,
    labels: Mapping[str, str] | None = None,
) -> Summary:
    """Return the overview of a trace.

    ``step_ns`` is what a step takes without the profiler, where it was measured and
    the run folder has no such figure. Unless given, ``labels`` are those of the run.
    """
    steady = steady_steps(trace)
    step_ns = step_ns or trace.step_ns
    kernels = steady.kernels.filter(pl.col("activity") == "kernel")
    small = (kernels["dur"] < SMALL_KERNEL_NS).mean()
    recorded_ns = steady.time / steady.count
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
        launches=launches_per_step(trace),
        small_kernels=small if isinstance(small, float) else 0.0,
        memory=peak_memory(trace),
        compute=compute(trace, steady).faster(
            recorded_ns / step_ns if step_ns else 1.0
        ),
        bound=bound_of(trace, step_ns),
        path=critical_path(
            trace, replay_of(trace), calibration_of(trace, step_ns).likely
        )
        if critical and trace.facts.gpu
        else None,
        host=host_account(
            trace, replay_of(trace), calibration_of(trace, step_ns).likely
        )
        if host
        else None,
        gpu=gpu_account(trace) if gpu and trace.facts.gpu else None,
        run=trace.run,
        rank=trace.rank,
        phases=_phases(trace, step_ns),
        longest=longest_by_phase(steady.kernels),
        modules=by_module(trace, steady),
        attention=softmax_and_matmuls(trace, kernels),
        tokens=tokens_of(trace) if _trains(trace) else None,
        roofline=_reached(trace, step_ns),
        labels=(trace.run.labels if trace.run else {}) if labels is None else labels,
        replayed=replayed(trace),
        parameters=trained_parameters(trace) if _trains(trace) else None,
        doubtful_step_ns=None if step_ns else trace.doubtful_step_ns,
        serving=serving(trace),
        queued_ns=queued_ns(trace),
    )


def _phases(trace: Trace, step_ns: int | None) -> tuple[PhaseTime, ...]:
    """Return the phases as recorded, with their time without the profiler."""
    estimated = estimated_phases(trace, step_ns)
    if not estimated:
        return by_phase(trace)
    estimated[STEP] = sum(estimated.values())
    return tuple(
        replace(phase, estimated_ns=estimated.get(phase.phase, 0.0))
        for phase in by_phase(trace)
    )


def _trains(trace: Trace) -> bool:
    return bool((trace.ops["phase"] == "backward").any())


def _reached(trace: Trace, step_ns: int | None) -> Reached | None:
    if not trace.facts.gpu or not trace.facts.shapes or used_gpu(trace).peak is None:
        return None
    kernel_roofline = roofline(trace)
    if kernel_roofline.covered < _TOLD:
        return None
    saved = recoverable_ns(trace, kernel_roofline, step_ns)
    return Reached(
        kernel_roofline.covered,
        kernel_roofline.bounds,
        kernel_roofline.efficiency,
        saved,
    )
