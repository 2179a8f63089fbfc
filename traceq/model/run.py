"""A run that ``traceq collect`` recorded: its folder, its ranks, its true step time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


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
