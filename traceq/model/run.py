"""A run that ``traceq collect`` recorded: its folder, its ranks, its true step time."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

from traceq.model.owners import NOBODY, Owners
from traceq.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# Chosen by judgement. Some steps do more work than others where mean and median differ
# by more than this share.
_DIFFERENT = 0.1
# Recorded steps are of one kind if none takes this many times as long as another.
_ALIKE = 1.5
# Recording makes steps longer: where the measured step takes this many times as long as
# the recorded ones, other steps were traced than timed.
_DOUBTFUL = 3.0
# Between the tenth and the ninetieth percentile of a normal distribution.
_DEVIATIONS = 2.563


@dataclass(frozen=True)
class StepTime:
    """What a step took with the profiler off, in nanoseconds."""

    ns: int
    """The mean: what a plain run takes per step."""
    median_ns: int
    min_ns: int
    max_ns: int
    steps: int
    """How many steps were timed."""
    usual_range_ns: int = 0
    """How far four of five steps are apart; 0 if unknown."""

    @property
    def noise_ns(self) -> float:
        """How far the mean of another recording of the same program may be off.

        That is twice the standard deviation of the difference of two such means, if
        steps are distributed normally.
        """
        deviation = self.usual_range_ns / _DEVIATIONS
        return 2 * deviation * (2 / max(1, self.steps)) ** 0.5

    @property
    def differ(self) -> bool:
        """Whether some steps do more work than others."""
        return abs(self.ns - self.median_ns) > _DIFFERENT * self.median_ns

    def like(self, recorded: Sequence[int]) -> int:
        """Return what steps like the recorded ones take.

        That is the mean; where the timed steps differ, and the recorded ones are all of
        one kind, it is the median: the recorded ones are the usual ones then.
        """
        alike = recorded and max(recorded) <= _ALIKE * min(recorded)
        return self.median_ns if self.differ and alike else self.ns

    def doubt(self, recorded: Sequence[int]) -> bool:
        """Return whether these steps cannot be those that were recorded."""
        mean = sum(recorded) / len(recorded) if recorded else 0
        return bool(mean) and self.like(recorded) >= _DOUBTFUL * mean


class HostCost(NamedTuple):
    """What one recorded event of the host takes, in nanoseconds."""

    plain_ns: int
    """Without the profiler."""
    overhead_ns: int
    """What recording adds."""


@dataclass(frozen=True)
class RecorderOverhead:
    """What recording cost on the machine of a run, measured after it."""

    frame: HostCost | None
    """A call of a Python function; none without stacks."""
    op: HostCost
    call: HostCost | None
    """A call of the CUDA runtime or driver; none without a GPU."""
    stacks: bool
    """Whether it was measured with Python stacks."""


@dataclass(frozen=True)
class CompiledPlace:
    """A graph break, or a function that was compiled again."""

    file: str | None
    line: int | None
    function: str | None
    why: str
    count: int


@dataclass(frozen=True)
class Compiled:
    """What torch.compile did in a process until its recording ended."""

    ops: int = 0
    """Ops in its graphs when they were first compiled."""
    graph_breaks: tuple[CompiledPlace, ...] = ()
    recompiles: tuple[CompiledPlace, ...] = ()


@dataclass(frozen=True)
class Rank:
    """What one process of a run recorded."""

    name: str
    """What its files begin with, as rank-0."""
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
    """How many cores of the machine it may use."""
    torch: str = ""
    """The version of torch, as 2.11; empty if it is not known."""
    first_lines: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Where functions begin that ran when the profiler started, by file and name."""
    owners: Owners = NOBODY
    """Which packages were the user's own, and which were installed."""
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Source files of the program, by their names in the trace."""
    first_step: int | None = None
    """Which step of the program was traced first; the same one on other ranks."""
    warm: bool = False
    """Whether it was traced after its warm-up, and compiled nothing meanwhile."""
    compiled: Compiled | None = None
    """What torch.compile did; None where that is not known."""
    compiled_code: Path | None = None
    """The graphs and the code that it made."""
    graphs_disabled: tuple[str, ...] = ()
    """Why compiled code does not use the CUDA graphs that were requested."""
    captures: tuple[Path, ...] = ()
    """Traces of captures of CUDA graphs, in the order of capture."""


@dataclass(frozen=True)
class Run:
    """One run folder."""

    folder: Path
    command: tuple[str, ...]
    labels: Mapping[str, str]
    ranks: tuple[Rank, ...]
    """By rank."""
    logs: tuple[Path, ...]
    """What the program wrote to stderr."""
    state: str
    """``finished``, or ``running`` if the launcher did not live to say so."""
    recorder_overhead: RecorderOverhead | None = None
    """What recording costs on that machine, where that was measured."""
    manifest: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """All that run.json says."""
