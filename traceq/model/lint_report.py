"""Lint report as plain data: nothing here computes or needs a table.

So it can be serialized and read again, and reports of it import little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from traceq.model.facts import Facts
    from traceq.model.finding import Finding, Place, Severity
    from traceq.model.run import Window

By = Literal["gpu", "host"]
StepFrom = Literal["measured", "estimated", "recorded"]
MOST_LINES = 20
"""How many lines of the host's account are reported."""


class ByCause(Protocol):
    """The time of a step by cause."""

    @property
    def rows(self) -> Sequence[tuple[str, float]]:
        """Cause and time per step, in ns, longest first."""

    @property
    def step_rows(self) -> Sequence[tuple[int, float, float]]:
        """Each step, how long the GPU had work in it, and waited for the host."""

    @property
    def idle_ns(self) -> float:
        """How long the GPU waits for the host in a step."""

    @property
    def step_ns(self) -> float:
        """What a step takes in the replay."""


class Entry(Struct, frozen=True):
    """A kind of what the host does, and its largest line; times are per step."""

    kind: str
    ns: float
    """How long the GPU waits in all of this kind."""
    calls: float
    name: str | None
    """Of the op, function, library or call that is the largest in it."""
    file: str | None
    line: int | None
    function: str | None
    line_ns: float
    """How long the GPU waits there."""


class Waits(Protocol):
    """What the host does while the GPU waits for it; times are per step."""

    @property
    def idle_ns(self) -> float:
        """How long the GPU waits."""

    @property
    def kind_rows(self) -> Sequence[tuple[str, float]]:
        """Kind and time, longest first."""

    @property
    def line_rows(self) -> Sequence[Mapping[str, Any]]:
        """The longest lines: kind, name, file, line, function, calls and time."""

    @property
    def largest(self) -> Entry | None:
        """The kind that takes longest, with its largest line."""


class Bound(Struct, frozen=True):
    """What bounds a step, and how busy the GPU is in it."""

    by: By
    sure: bool
    """Whether it holds for the fastest and the slowest host that the recording allows,
    and as recorded too where no step was measured without the profiler."""
    step_ns: float
    """What a step takes."""
    step_from: StepFrom
    """Where that comes from: measured without the profiler, estimated without it, or
    as recorded."""
    recorded_step_ns: float
    """What a step takes as recorded, on average."""
    gpu_busy: float
    """Share of the step in which the GPU has work."""
    gpu_idle: float
    """Share of the step in which the GPU waits for the host."""
    bottleneck: ByCause | None
    """The time of the step by cause; none without GPU work."""
    stepped: bool
    """Whether the trace has steps; else the whole of it counts as one."""
    waits: Waits | None = None
    """What the host does while the GPU waits; none where the step is GPU-bound."""

    @property
    def measured(self) -> bool:
        """Whether the step was measured without the profiler."""
        return self.step_from == "measured"


class StepKinds(Struct, frozen=True):
    """Steps of two kinds, typical and long ones, and which of them were recorded."""

    window: Window
    """Which ones were recorded: whole periods, typical ones, or those that came."""
    period: int | None
    """After how many steps long ones come again, if that is regular."""
    recorded: int
    """How many steps were recorded, without warm-up,"""
    recorded_long: int
    """and how many of them are long."""
    averaged: int
    """How many of them the averages are over,"""
    averaged_long: int
    """and how many of these are long."""
    measured: bool
    """Whether the times are measured without the profiler, else as recorded."""
    long_ns: float
    """What a long step takes, on average."""
    typical_ns: float
    """What the others take."""
    long_share: float | None
    """The share of the program's steps that are long, where that was measured,"""
    long_time_share: float | None
    """and their share of its time."""


class Replayed(Struct, frozen=True):
    """Kernels, copies and sets that replays of CUDA graphs ran, of the whole trace."""

    kernels: int
    mapped: int
    """How many have the op of their capture."""
    certain: int
    """How many of these can have no other."""
    captures: bool
    """Whether a capture was at hand, in the trace or beside it."""


class Memory(Struct, frozen=True):
    """The peak of one device of one rank."""

    rank: int
    device: int
    allocated: int
    reserved: int
    """The most ever reserved."""
    damage: tuple[str, ...]
    """What is missing in the snapshots."""


class Together(Struct, frozen=True):
    """What fixing the worst findings saves together."""

    findings: int
    """How many of them, from the worst on."""
    step_ns: int
    """What a step takes then."""
    step_low_ns: int
    """The lowest that it may be then; known only where all are fixed."""
    step_high_ns: int
    by: By
    """What bounds the step then; known only where all are fixed."""
    gpu_ns: int | None = None
    """How long the GPU has work in such a step; known only where all are fixed."""


class ExplainedIdle(Struct, frozen=True):
    """How much of the GPU's idle time findings explain; times are per step."""

    idle_ns: float
    """How long the GPU idles while the host bounds the step."""
    explained_ns: float
    """How much of that the fixes of findings remove, without those on what remains."""
    with_residual_ns: float
    """The same, with those."""
    residual: tuple[str, ...]
    """The codes of the findings on what remains."""
    unexplained: Entry | None
    """What the GPU waits for most in the time that no finding explains."""

    @property
    def share(self) -> float:
        """The share of the idle time that is explained."""
        return self.explained_ns / self.idle_ns if self.idle_ns else 1.0


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


class Outcome(Struct, frozen=True):
    """What lint reports of one recording."""

    name: str
    """The path that was given."""
    facts: Facts | None
    bound: Bound | None
    steps: int
    """How many steps the averages are over."""
    step_ns: int
    """What a step takes: as measured, else as it likely does without the profiler."""
    findings: tuple[Finding, ...]
    """Worst first."""
    together: tuple[Together, ...]
    """What fixing the worst of them saves together."""
    below_min_cost: int
    """How many findings cost less than the user wants to see."""
    skipped: tuple[Skipped, ...]
    crashed: tuple[Crashed, ...]
    allowed: tuple[Allowed, ...]
    ran: int
    """How many rules ran to their end."""
    memory: Memory | None = None
    """The peak, where there is a memory snapshot."""
    idle: ExplainedIdle | None = None
    """How much of the GPU's idle time the findings explain; none if it bounds a step,
    or where that was not asked for."""
    entry: Place | None = None
    """Where the program begins, as far as its stacks show: for what has no place."""
    in_baseline: int = 0
    """How many findings are hidden, since a baseline lists them."""
    replayed: Replayed | None = None
    """What replays of CUDA graphs ran, if there are any."""
    step_kinds: StepKinds | None = None
    """Which kinds of steps there are, if not all are alike."""


class Report(Struct, frozen=True):
    """What lint reports of all recordings."""

    outcomes: tuple[Outcome, ...]
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
        """Whether a rule crashed, so that what it looks for may be there."""
        return any(outcome.crashed for outcome in self.outcomes)

    @classmethod
    def of(
        cls, outcomes: Iterable[Outcome], fail_on: Severity, allow: Iterable[Allow]
    ) -> Report:
        """Return the report, with what of the configuration allowed nothing."""
        known = tuple(outcomes)
        used = {allowed.entry for one in known for allowed in one.allowed}
        return cls(known, fail_on, tuple(one for one in allow if one not in used))
