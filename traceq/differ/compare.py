"""Comparison of two recordings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import polars as pl

from traceq.analysis.base.assumptions import (
    GPU_CHANGE,
    HOST_CHANGE,
    HOST_VARIES,
    RECORDED_HOST_VARIES,
)
from traceq.analysis.memory.diff import MemoryDiff, memory_diff
from traceq.analysis.memory.history import History
from traceq.analysis.replay.bound import bound_of
from traceq.common.parallel import run_both
from traceq.differ.attribution import SPECIAL
from traceq.differ.calibration import scale_of
from traceq.differ.calls import Calls, calls_of, compare_calls
from traceq.differ.causes import Cause, causes_of
from traceq.differ.caveats import caveats_of
from traceq.differ.findings import FindingChanges, compare_findings
from traceq.differ.host import idle_entries
from traceq.differ.kinds import ALL_OVER
from traceq.differ.metrics import Metric, metrics, numbers_of
from traceq.differ.modules import module_changes
from traceq.differ.steps import Step, significant, steps_of, typical
from traceq.differ.structure import parts_of
from traceq.errors import InputError
from traceq.model.names import DATA_REGION

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.differ.calibration import Scale
    from traceq.differ.causes import Entries
    from traceq.differ.modules import ModuleChanges
    from traceq.differ.structure import Parts
    from traceq.model.lint_report import Bound, RecordingReport
    from traceq.model.recording import Recording
    from traceq.model.trace import Trace


@dataclass(frozen=True)
class Half:
    """One recording, analysed alone."""

    recording: Recording
    trace: Trace
    steady: SteadySteps
    """The steps that stand for all."""
    parts: Parts
    calls: pl.DataFrame
    outcome: RecordingReport


@dataclass(frozen=True)
class Side:
    """One of the two recordings, as the comparison shows it."""

    name: str
    """The path that was given."""
    step: Step
    bound: Bound
    """Bound of its step without the profiler: GPU or host."""
    loaders: tuple[str, ...]
    """Data loaders of the program, as _SingleProcessDataLoaderIter."""
    incomplete: bool = False
    """A part of the file could not be read."""


Verdict = Literal["faster", "slower", "no change", "gpu"]


@dataclass(frozen=True)
class Diff:
    """The change from one recording to another, and its causes."""

    before: Side
    after: Side
    verdict: Verdict
    """``gpu``: the GPU's work has changed, and the profiler slowed the host down too
    much for the recorded steps to be compared."""
    metrics: tuple[Metric, ...]
    causes: tuple[Cause, ...]
    """Biggest first; their times add up to the change of the step."""
    calls: Calls
    """Ops and regions that only one side has."""
    findings: FindingChanges
    caveats: tuple[str, ...]
    """Differences between the two recordings that limit the comparison."""
    memory: MemoryDiff | None = None
    """The change of the peak, where both have a memory snapshot."""
    modules: ModuleChanges | None = None
    """Effect of torch.compile on each module, where only one side is compiled."""

    @property
    def change_ns(self) -> float:
        """Increase of the step time."""
        return self.after.step.ns - self.before.step.ns

    @property
    def stepped(self) -> bool:
        """True if a side has steps; otherwise a step is the whole trace."""
        return any(
            side.bound.stepped or side.step.measured
            for side in (self.before, self.after)
        )

    @property
    def longest_ns(self) -> float:
        """The longer of the two steps."""
        return max(self.before.step.ns, self.after.step.ns)


@dataclass(frozen=True)
class MemoryChange:
    """The change from one memory snapshot to another, where there are no traces."""

    names: tuple[str, str]
    """The paths that were given."""
    memory: MemoryDiff
    metrics: tuple[Metric, ...]
    findings: FindingChanges
    verdict: Verdict = "no change"
    """Of the step, which snapshots do not record."""


def compare_snapshots(
    recordings: tuple[Recording, Recording],
    outcomes: tuple[RecordingReport, RecordingReport],
) -> MemoryChange:
    """Return the change between two recordings that are memory snapshots alone."""
    memory = _memory(*recordings)
    if memory is None:
        msg = (
            f"{recordings[0].name} and {recordings[1].name} have nothing to compare:"
            " diff needs two traces or two memory snapshots"
        )
        raise InputError(msg)
    peaks = memory.peaks.sort("after", descending=True).row(0, named=True)
    return MemoryChange(
        (recordings[0].name, recordings[1].name),
        memory,
        (Metric("memory", peaks["before"], peaks["after"]),),
        compare_findings(*outcomes),
    )


def _memory(before: Recording, after: Recording) -> MemoryDiff | None:
    """Compare the snapshots of the lowest rank that both have."""
    ranks = sorted(before.snapshots.keys() & after.snapshots.keys())
    if not ranks:
        return None
    change = memory_diff(
        *(History(side.snapshots[ranks[0]], side.trace) for side in (before, after))
    )
    return change if change.peaks.height else None


def examine(recording: Recording, outcome: RecordingReport) -> Half:
    """Take one recording apart; what lint found in it is given."""
    trace = recording.trace
    if trace is None:
        msg = f"{recording.name} has no trace: diff compares two traces"
        raise InputError(msg)
    steady = typical(trace)
    parts = parts_of(trace, steady, on_host=not trace.facts.gpu)
    return Half(recording, trace, steady, parts, calls_of(trace, steady), outcome)


def slowed(trace: Trace) -> bool:
    """Return whether recording stacks slowed the host down, as PyTorch's profiler."""
    return trace.frames.height > 0 and not trace.facts.recorder


def compare(before: Half, after: Half) -> Diff:
    """Return the change from one recording to the other."""
    halves = _alike(before, after)
    traces = (before.trace, after.trace)
    steps = steps_of(before.recording, after.recording)
    first, second = (half.parts for half in halves)
    scales = (
        scale_of(first, steps[0], stacks=slowed(before.trace)),
        scale_of(second, steps[1], stacks=slowed(after.trace)),
    )
    sides = [
        Side(
            half.recording.name,
            step,
            bound_of(half.trace, half.recording.step_ns),
            _loaders(half.trace),
            half.trace.facts.incomplete,
        )
        for half, step in zip(halves, steps, strict=True)
    ]
    numbers = [
        numbers_of(half.trace, half.parts, step, scale)
        for half, step, scale in zip(halves, steps, scales, strict=True)
    ]
    modules = None
    if not first.on_host:
        modules = module_changes(traces, (before.steady, after.steady), scales)
    causes = causes_of(first, second, scales, _entries(halves, scales, steps))
    return Diff(
        before=sides[0],
        after=sides[1],
        verdict=_verdict(steps, causes, scales),
        metrics=metrics(*numbers),
        causes=causes,
        calls=compare_calls(before.calls, after.calls),
        findings=compare_findings(before.outcome, after.outcome),
        caveats=caveats_of(
            before.recording,
            after.recording,
            traces,
            (first, second),
            by_module=modules is not None,
        ),
        memory=_memory(before.recording, after.recording),
        modules=modules,
    )


def _entries(
    halves: tuple[Half, Half],
    scales: tuple[Scale, Scale],
    steps: tuple[Step, Step],
) -> Entries:
    """Return the host's activity in the idle time, where its change matters."""
    idle = [
        scale.idle * float(half.parts.rows["launch_idle_ns"].sum())
        for half, scale in zip(halves, scales, strict=True)
    ]
    longest = max(step.ns for step in steps)
    if halves[0].parts.on_host or abs(idle[1] - idle[0]) < HOST_CHANGE * longest:
        return None, None
    return run_both(*(partial(_idle_entries, half) for half in halves))


def _idle_entries(half: Half) -> pl.DataFrame:
    return idle_entries(half.trace, half.recording.step_ns, half.parts)


def _alike(before: Half, after: Half) -> tuple[Half, Half]:
    """Compare the host's time in ops where one side has no GPU work."""
    if before.parts.on_host == after.parts.on_host:
        return before, after
    first, second = (
        replace(half, parts=parts_of(half.trace, half.steady, on_host=True))
        for half in (before, after)
    )
    return first, second


def _verdict(
    steps: tuple[Step, Step], causes: tuple[Cause, ...], scales: tuple[Scale, Scale]
) -> Verdict:
    change = steps[1].ns - steps[0].ns
    longest = max(step.ns for step in steps)
    plain: Verdict = "no change"
    inflated = min(scale.sure for scale in scales) < 1
    host_varies = (RECORDED_HOST_VARIES if inflated else HOST_VARIES) * longest
    if significant(*steps) and (
        steps[0].measured or not _varies(causes, longest, host_varies)
    ):
        plain = "slower" if change > 0 else "faster"
    on_gpu = sum(cause.ns for cause in causes if cause.affects == "gpu")
    matters = abs(on_gpu) > GPU_CHANGE * longest
    if inflated and matters and (plain == "no change" or on_gpu * change < 0):
        return "gpu"
    return plain


def _varies(causes: tuple[Cause, ...], longest: float, host_varies: float) -> bool:
    """Return whether all that changed is how long the host takes for the same."""
    even = [cause for cause in causes if cause.affects != "gpu" and _is_even(cause)]
    host = sum(cause.ns for cause in even)
    others = [cause.ns for cause in causes if cause not in even]
    return abs(host) <= host_varies and all(
        abs(ns) <= GPU_CHANGE * longest for ns in (*others, sum(others))
    )


def _is_even(cause: Cause) -> bool:
    """Return whether the host did the same before and after."""
    if cause.kind in ALL_OVER:
        return True
    varies = HOST_VARIES * max(cause.before.ns, cause.after.ns)
    return cause.kind in (*SPECIAL, "host") and abs(cause.ns) <= varies


def _loaders(trace: Trace) -> tuple[str, ...]:
    names = trace.annotations["name"].unique().cast(pl.String)
    loading = names.filter(names.str.contains(DATA_REGION))
    return tuple(loading.str.extract(r"#(\w+)").drop_nulls().unique().sort())
