"""A run that ``traceq collect`` recorded: its folder, its ranks, its true step time."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import sqrt
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec import Struct

from traceq.model.owners import NOBODY, Owners

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from traceq.model.oom import OutOfMemory
    from traceq.model.slow_steps import SlowRun

# Heuristic threshold: some steps do more work than others if mean and median differ by
# more than this fraction.
_DIFFERENT = 0.1
# Recorded steps are of one kind if none takes this many times as long as another.
_ALIKE = 1.5
# Recording makes steps longer: where the measured step takes this many times as long as
# the recorded ones, other steps were traced than timed.
_DOUBTFUL = 3.0
# Recorded steps are of two kinds if the times of one are this many times those of the
# other, or more.
_LEAST_APART = 1.2
# All recorded steps are long ones if they take this much of what those take, or more.
_AS_LONG = 0.9
# Steps went to another level if at least this many are before and after, this
# share of them on either side, and the levels so far apart. Heuristic thresholds.
_LEVEL = 6
_PURE = 0.8
_LEAST_LEVELS_APART = 1.25
# Between the tenth and the ninetieth percentile of a normal distribution.
_DEVIATIONS = 2.563

Window = Literal["period", "typical", "consecutive", ""]


class LongSteps(Struct, frozen=True):
    """Steps that do more than the typical ones, as one rollout every 16 steps."""

    share: float
    """The share of the steps that are long."""
    ns: int
    """Mean duration without the profiler."""
    typical_ns: int
    """Mean duration of the other steps."""

    def among(self, recorded: Sequence[int]) -> list[bool]:
        """Return for each recorded step whether it is a long one, by its duration.

        Recording makes steps longer, but those of one kind alike. Where all are of one
        kind they are the typical ones, unless that is out of the question.
        """
        apart = max(_LEAST_APART, sqrt(self.ns / self.typical_ns))
        result = are_longer(recorded, apart)
        if any(result) or not recorded:
            return result
        mean = sum(recorded) / len(recorded)
        least = max(_DOUBTFUL * self.typical_ns, _AS_LONG * self.ns)
        return [mean >= least] * len(recorded)

    def mean_ns(self, long: float) -> int:
        """Return the mean duration of a step if this share of the steps is long."""
        return round(long * self.ns + (1 - long) * self.typical_ns)


def are_longer(times: Sequence[int], apart: float) -> list[bool]:
    """Return for each time whether it is above the widest gap, if that is wide enough.

    >>> are_longer([10, 331, 9], 1.5), are_longer([10, 12, 9], 1.5)
    ([False, True, False], [False, False, False])
    """
    ordered = sorted(times)
    gaps = [(high / max(low, 1), high) for low, high in pairwise(ordered)]
    widest, least = max(gaps, default=(0.0, 0))
    return [widest >= apart and time >= least for time in times]


def last_level(times: Sequence[float]) -> float | None:
    """Return the mean of the last steps, if steps went to another level for good.

    That is so if most of the first and most of the last ones are apart, at least six
    of each.

    >>> last_level([88.0] * 7 + [55.0] * 6), last_level([88.0, 55.0] * 7)
    (55.0, None)
    """
    splits = [_levels(times, at) for at in range(_LEVEL, len(times) - _LEVEL + 1)]
    apart = [split for split in splits if split.least_pure >= _PURE]
    return max(apart).last_mean if apart else None


class _Levels(NamedTuple):
    """Times divided into the first and the last."""

    least_pure: float
    """Share of the first, or of the last, that is on the side of their median."""
    last_mean: float
    """Mean of the last that are."""


def _levels(times: Sequence[float], at: int) -> _Levels:
    """Return how pure two levels are; 0 if they are too near to each other."""
    first, last = times[:at], times[at:]
    usual = median(first), median(last)
    if max(usual) < _LEAST_LEVELS_APART * min(usual):
        return _Levels(0.0, 0.0)
    between = sqrt(usual[0] * usual[1])
    fell = usual[1] < usual[0]
    settled = [time for time in last if (time < between) is fell]
    before = [time for time in first if (time < between) is not fell]
    return _Levels(
        min(len(before) / len(first), len(settled) / len(last)),
        sum(settled) / len(settled),
    )


class StepTime(Struct, frozen=True):
    """Duration of a step with the profiler off, in nanoseconds."""

    ns: int
    """The mean: what a plain run takes per step."""
    median_ns: int
    min_ns: int
    max_ns: int
    steps: int
    """Number of timed steps."""
    long: LongSteps | None = None
    """The steps that are longer than the others; none if all are alike."""
    period: int | None = None
    """Number of steps from one long step to the next, if that is regular."""
    usual_range_ns: int = 0
    """Width of the central 80% of the step times; 0 if unknown."""
    last_level_ns: int | None = None
    """Mean of the last steps, if they went from one level to another for good."""

    @property
    def noise_ns(self) -> float:
        """Plausible difference between the means of two recordings of the same program.

        That is twice the standard deviation of the difference of two such means, if
        steps are distributed normally.
        """
        deviation = self.usual_range_ns / _DEVIATIONS
        return 2 * deviation * (2 / max(1, self.steps)) ** 0.5

    @property
    def differ(self) -> bool:
        """True if some steps do more work than others."""
        return abs(self.ns - self.median_ns) > _DIFFERENT * self.median_ns

    @property
    def long_share(self) -> float:
        """The share of the steps that are long: of a whole period, if it is known."""
        if self.long is None:
            return 0.0
        if self.period is None:
            return self.long.share
        return max(1, round(self.long.share * self.period)) / self.period

    @property
    def long_time_share(self) -> float:
        """The share of the time that long steps take."""
        if self.long is None:
            return 0.0
        share = self.long_share
        return share * self.long.ns / max(1, self.long.mean_ns(share))

    def like(self, recorded: Sequence[int], window: Window = "") -> int:
        """Return the duration of steps like the recorded ones.

        That is the mean; where the timed steps differ, and the recorded ones are all of
        one kind, it is the median: the recorded ones are the usual ones then. Where it
        is known which are long, it is the mean with as many long ones as recorded.
        Where they went to another level, that is the one of the recorded steps, which
        come next.
        """
        if self.last_level_ns is not None:
            return self.last_level_ns
        if self.long and recorded:
            shares = {"typical": 0.0, "period": self.long_share}
            among = sum(self.long.among(recorded)) / len(recorded)
            return self.long.mean_ns(shares.get(window, among))
        alike = recorded and max(recorded) <= _ALIKE * min(recorded)
        return self.median_ns if self.differ and alike else self.ns

    def doubt(self, recorded: Sequence[int], window: Window = "") -> bool:
        """Return whether these steps cannot be those that were recorded."""
        mean = sum(recorded) / len(recorded) if recorded else 0
        return bool(mean) and self.like(recorded, window) >= _DOUBTFUL * mean


class HostCost(NamedTuple):
    """Cost of one recorded event of the host, in nanoseconds."""

    plain_ns: int
    """Without the profiler."""
    overhead_ns: int
    """Overhead of recording it."""


class RecorderOverhead(Struct, frozen=True):
    """Cost of recording on the machine of a run, measured after it."""

    frame: HostCost | None
    """A call of a Python function; none without stacks."""
    op: HostCost
    call: HostCost | None
    """A call of the CUDA runtime or driver; none without a GPU."""
    stacks: bool
    """True if it was measured with Python stacks."""


class CompiledPlace(Struct, frozen=True):
    """A graph break, or a function that was compiled again."""

    file: str | None
    line: int | None
    function: str | None
    why: str
    count: int


class Compiled(Struct, frozen=True):
    """Work of torch.compile in a process until its recording ended."""

    ops: int = 0
    """Ops in its graphs when they were first compiled."""
    graph_breaks: tuple[CompiledPlace, ...] = ()
    recompiles: tuple[CompiledPlace, ...] = ()


@dataclass(frozen=True)
class Rank:
    """The recording of one process of a run."""

    name: str
    """Prefix of its files, as rank-0."""
    rank: int
    state: str
    """``done``, or why not."""
    trace: Path | None
    memory: Path | None
    """Snapshot of the allocator."""
    step_time: StepTime | None
    missing: tuple[str, ...]
    """Sentences on what could not be recorded."""
    cores: int | None = None
    """Number of cores of the machine that it may use."""
    torch: str = ""
    """The version of torch, as 2.11; empty if it is not known."""
    first_lines: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """First lines of functions that ran when the profiler started, by file and name; of
    a file's own statements the one that ran."""
    owners: Owners = NOBODY
    """The user's own packages, and the installed ones."""
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Source files of the program, by their names in the trace."""
    steps_by: str = ""
    """Event that steps were counted by, as ``optimizer``; ``time`` if there were
    none."""
    window: Window = ""
    """The traced steps: whole periods, typical ones, or consecutive ones."""
    first_step: int | None = None
    """Number of the first traced step; the same one on other ranks."""
    warm: bool = False
    """True if it was traced after its warm-up, and compiled nothing meanwhile."""
    compiled: Compiled | None = None
    """Work of torch.compile; None where that is not known."""
    compiled_code: Path | None = None
    """The graphs and the code that it made."""
    graphs_disabled: tuple[str, ...] = ()
    """Reasons why compiled code does not use the CUDA graphs that were requested."""
    captures: tuple[Path, ...] = ()
    """Traces of captures of CUDA graphs, in the order of capture."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Reasons why parts could not be recorded, by part."""
    device: str = ""
    """Device of the steps, as ``cuda:0`` or ``cpu``; empty if it is not known."""
    tf32: bool | None = None
    """True if float32 matmuls may round to TF32; None if that is not known."""
    cudnn_benchmark: bool | None = None
    """True if cuDNN searches for its fastest algorithms; None if that is not known."""
    cudnn_deterministic: bool | None = None
    """True if cuDNN uses deterministic algorithms alone; None if it is not known."""
    discarded: tuple[str, ...] = ()
    """Reasons why attempts to trace were discarded, in order."""
    oom: OutOfMemory | None = None
    """Out-of-memory error; the snapshot is the one of that moment then."""
    slow: SlowRun | None = None
    """Slow steps of the whole run; none if they were not watched."""


@dataclass(frozen=True)
class Run:
    """One run folder."""

    folder: Path
    command: tuple[str, ...]
    labels: Mapping[str, str]
    ranks: tuple[Rank, ...]
    """By rank."""
    logs: tuple[Path, ...]
    """The program's stderr."""
    state: str
    """``finished``, or ``running`` if the launcher did not live to say so."""
    recorder_overhead: RecorderOverhead | None = None
    """Cost of recording on that machine, where that was measured."""
    failed_with: str = ""
    """Exit status or signal of the program, as ``status 1``, if it failed by itself."""
    manifest: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """All that run.json says."""
