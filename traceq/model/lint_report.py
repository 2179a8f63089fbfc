"""Lint report as plain data: nothing here computes or needs a table.

So it can be serialized and read again, and reports of it import little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from traceq.model.facts import Facts
from traceq.model.finding import Finding, Place
from traceq.model.run import Window
from traceq.model.slow_steps import SlowSteps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from traceq.model.finding import Severity

By = Literal["gpu", "host"]
StepFrom = Literal["measured", "estimated", "recorded"]
Number: TypeAlias = int | float
"""A number that is the same from the cache: as a float, an int would come back as one.
"""
MOST_LINES = 20
"""Maximum number of lines of the host's account in a report."""


@runtime_checkable
class TimeByCause(Protocol):
    """The time of a step by cause."""

    @property
    def rows(self) -> Sequence[tuple[str, float]]:
        """Cause and time per step, in ns, longest first."""

    @property
    def step_rows(self) -> Sequence[tuple[int, float, float]]:
        """Each step, how long the GPU had work in it, and waited for the host."""

    @property
    def idle_ns(self) -> float:
        """Time per step that the GPU waits for the host."""

    @property
    def step_ns(self) -> float:
        """Duration of a step in the replay."""


class HostTimeEntry(Struct, frozen=True):
    """A kind of what the host does, and its largest line; times are per step."""

    kind: str
    ns: Number
    """Time that the GPU waits in all of this kind."""
    calls: Number
    name: str | None
    """Of the op, function, library or call that is the largest in it."""
    file: str | None
    line: int | None
    function: str | None
    line_ns: Number
    """Time that the GPU waits there."""


@runtime_checkable
class IdleBreakdown(Protocol):
    """Host activity while the GPU waits for the host; times are per step."""

    @property
    def idle_ns(self) -> float:
        """Time that the GPU waits for the host."""

    @property
    def kind_rows(self) -> Sequence[tuple[str, float]]:
        """Kind and time, longest first."""

    @property
    def line_rows(self) -> Sequence[Mapping[str, Any]]:
        """The longest lines: kind, name, file, line, function, calls and time."""

    @property
    def largest(self) -> HostTimeEntry | None:
        """The kind that takes longest, with its largest line."""


class Bound(Struct, frozen=True):
    """Bound of a step, and how busy the GPU is in it."""

    by: By
    sure: bool
    """True if it holds for the fastest and the slowest host that the recording allows,
    and as recorded too where no step was measured without the profiler."""
    step_ns: Number
    """Duration of a step."""
    step_from: StepFrom
    """Source of that: measured without the profiler, estimated without it, or as
    recorded."""
    recorded_step_ns: Number
    """Mean duration of a step as recorded."""
    gpu_busy: Number
    """Share of the step in which the GPU has work."""
    gpu_idle: Number
    """Share of the step in which the GPU waits for the host."""
    bottleneck: TimeByCause | None
    """The time of the step by cause; none without GPU work."""
    stepped: bool
    """True if the trace has steps; otherwise the whole of it counts as one."""
    waits: IdleBreakdown | None = None
    """Host activity while the GPU waits; none where the step is GPU-bound."""
    both: bool = False
    """True if host and GPU take about as long for the measured step, so that either
    may bound it."""

    @property
    def measured(self) -> bool:
        """True if the step was measured without the profiler."""
        return self.step_from == "measured"


class StepKinds(Struct, frozen=True):
    """Steps of two kinds, typical and long ones, and which of them were recorded."""

    window: Window
    """The recorded steps: whole periods, typical ones, or consecutive ones."""
    period: int | None
    """Number of steps from one long step to the next, if that is regular."""
    recorded: int
    """Number of recorded steps, without warm-up."""
    recorded_long: int
    """Number of long steps among them."""
    averaged: int
    """Number of recorded steps that the averages are over."""
    averaged_long: int
    """Number of long steps among these."""
    measured: bool
    """True if the times are measured without the profiler, False if as recorded."""
    long_ns: Number
    """Mean duration of a long step."""
    typical_ns: Number
    """Mean duration of the other steps."""
    long_share: Number | None
    """Share of the program's steps that are long, where that was measured."""
    long_time_share: Number | None
    """Share of the program's time that long steps take, where that was measured."""


class Replayed(Struct, frozen=True):
    """Kernels, copies and sets that replays of CUDA graphs ran, of the whole trace."""

    kernels: int
    mapped: int
    """Number of these with the op of their capture."""
    certain: int
    """Number of mapped ones that can have no other op."""
    captures: bool
    """True if a capture was at hand, in the trace or beside it."""


class Memory(Struct, frozen=True):
    """The peak of one device of one rank."""

    rank: int
    device: int
    allocated: int
    reserved: int
    """The most ever reserved."""
    damage: tuple[str, ...]
    """Sentences on what is missing in the snapshots."""


class CombinedFix(Struct, frozen=True):
    """Combined savings of fixing the worst findings."""

    findings: int
    """Number of fixed findings, from the worst on."""
    step_ns: int
    """Duration of a step with these fixes."""
    step_low_ns: int
    """The lowest plausible duration; known only where all are fixed."""
    step_high_ns: int
    by: By
    """Bound of the step with these fixes; known only where all are fixed."""
    gpu_ns: int | None = None
    """Time that the GPU has work in such a step; known only where all are fixed."""


class ExplainedIdle(Struct, frozen=True):
    """GPU idle time that findings explain; times are per step."""

    idle_ns: Number
    """Idle time of the GPU while the host bounds the step."""
    explained_ns: Number
    """The part of it that the fixes remove, without residual findings."""
    with_residual_ns: Number
    """The part of it that the fixes remove, with residual findings."""
    residual: tuple[str, ...]
    """Codes of the residual findings."""
    unexplained: HostTimeEntry | None
    """The largest cause of the waits that no finding explains."""

    @property
    def share(self) -> float:
        """The share of the idle time that is explained."""
        return self.explained_ns / self.idle_ns if self.idle_ns else 1.0


class GpuEntry(Struct, frozen=True):
    """A loss of the GPU's time at one line; times are per step."""

    part: str
    """The kind of loss."""
    name: str | None
    """Name of the op, or of the kernel."""
    ns: Number
    kernels: Number
    file: str | None
    line: int | None
    function: str | None


class ExplainedGpu(Struct, frozen=True):
    """GPU time above what its work needs that findings explain, per step."""

    busy_ns: Number
    """Busy time of the GPU."""
    floor_ns: Number
    """The part of it that the work needs, with transfers and collectives."""
    above_ns: Number
    """The rest of it, of kernels whose need is known."""
    explained_ns: Number
    """The part of that in kernels that a finding's fix changes."""
    unexplained: tuple[GpuEntry, ...]
    """The largest losses that no finding explains."""

    @property
    def share(self) -> float:
        """The share of the time above the floor that is explained."""
        return self.explained_ns / self.above_ns if self.above_ns > 0 else 1.0


class Skipped(Struct, frozen=True):
    """A rule that did not run, and why."""

    code: str
    name: str
    reason: str


class Crashed(Struct, frozen=True):
    """A rule that raised an error, which says nothing about the recording."""

    code: str
    name: str
    error: str


class Allow(Struct, frozen=True):
    """A finding that is intentional."""

    rule: str
    reason: str
    where: str = "*"
    """A pattern of the finding's file, module or subject."""
    trace: str = "*"
    """A pattern of the trace's path."""


class Allowed(Struct, frozen=True):
    """A finding that is intentional."""

    finding: Finding
    reason: str
    entry: Allow | None = None
    """The entry of the configuration that allows it; none if the program does."""


class CpuLine(Struct, frozen=True):
    """A line of a program that ran without a GPU."""

    place: Place
    name: str | None
    """Name of the operator where no line is known."""
    ns: float
    """Time per step, as recorded."""
    phases: tuple[str, ...]


class CpuTime(Struct, frozen=True):
    """Time of a step without GPU work, as recorded."""

    phases: tuple[tuple[str, float], ...]
    """Phase and time per step, longest first."""
    lines: tuple[CpuLine, ...]
    """The lines that take longest."""


class RecordingReport(Struct, frozen=True):
    """Lint result of one recording."""

    name: str
    """The path that was given."""
    facts: Facts | None
    bound: Bound | None
    steps: int
    """Number of steps that the averages are over."""
    step_ns: int
    """Duration of a step: as measured, else as estimated without the profiler."""
    findings: tuple[Finding, ...]
    """Worst first."""
    together: tuple[CombinedFix, ...]
    """Combined savings of fixing the worst of them."""
    below_min_cost: int
    """Number of findings that cost less than the user's ``min-cost``."""
    skipped: tuple[Skipped, ...]
    crashed: tuple[Crashed, ...]
    allowed: tuple[Allowed, ...]
    ran: int
    """Number of rules that ran to their end."""
    memory: Memory | None = None
    """The peak, where there is a memory snapshot."""
    idle: ExplainedIdle | None = None
    """GPU idle time that the findings explain; none if the GPU bounds the step, or
    where that was not requested."""
    gpu: ExplainedGpu | None = None
    """GPU time above its floor that the findings explain; none if the host bounds the
    step, or where that was not requested."""
    entry: Place | None = None
    """The program's entry point, as far as its stacks show: for findings without a
    place."""
    in_baseline: int = 0
    """Number of findings that are hidden because a baseline lists them."""
    replayed: Replayed | None = None
    """Kernels that replays of CUDA graphs ran, if there are any."""
    step_kinds: StepKinds | None = None
    """Kinds of steps, if not all are alike."""
    cpu: CpuTime | None = None
    """Time of a step by phase and line, if there is no GPU work."""
    not_applicable: tuple[Skipped, ...] = ()
    """Rules for recordings of another kind: several ranks, or no GPU."""
    doubtful_step_ns: int | None = None
    """A measured step that is not used: the recorded ones take another time."""
    slow_steps: SlowSteps | None = None
    """Rare slow steps by cause; none where the steps were not watched."""


class Report(Struct, frozen=True):
    """Lint results of all recordings."""

    outcomes: tuple[RecordingReport, ...]
    fail_on: Severity
    unused: tuple[Allow, ...] = ()
    """Entries of the configuration that allow nothing that was found."""

    @property
    def failing(self) -> list[Finding]:
        """The findings that fail the run."""
        return [
            finding
            for outcome in self.outcomes
            for finding in outcome.findings
            if finding.severity.rank >= self.fail_on.rank
        ]

    @property
    def crashed(self) -> bool:
        """True if a rule crashed, so that its findings are unknown."""
        return any(outcome.crashed for outcome in self.outcomes)

    @classmethod
    def of(
        cls,
        outcomes: Iterable[RecordingReport],
        fail_on: Severity,
        allow: Iterable[Allow],
    ) -> Report:
        """Return the report, with what of the configuration allowed nothing."""
        known = tuple(outcomes)
        used = {allowed.entry for report in known for allowed in report.allowed}
        return cls(known, fail_on, tuple(item for item in allow if item not in used))
