"""Slow steps of a whole run, as ``traceq collect --keep-slow`` wrote them."""

from __future__ import annotations

from msgspec import Struct

from traceq.model.oom import Line  # noqa: TC001 - msgspec resolves it


class SlowStep(Struct, frozen=True):
    """A step that took much longer than the others; times are in nanoseconds."""

    step: int
    ns: int
    median_ns: int
    """The median of the steps before it, without time that they had no core."""
    cpu_ns: int
    """Time that its thread ran."""
    queued_ns: int
    """Time that its thread was ready to run and had no core."""
    gc_ns: int
    data_ns: int
    """Time that the program waited for the DataLoader."""
    checkpoint_ns: int
    """Time in torch.save."""
    marks: tuple[str, ...]
    """``evaluation``, ``first batch``, ``full gc``."""
    compiles: int
    alloc_retries: int
    cuda_mallocs: int
    clock: int | None
    """The GPU's clock in MHz; None if that was not read."""
    highest_clock: int | None
    line: Line | None
    """The line that it was seen at most often."""
    watched_ns: int = 0
    """Time from the first look at its line to its end."""
    others_queued_ns: int = 0
    """Of that, the most that another thread of the program had no core."""


class SlowRun(Struct, frozen=True):
    """The watched steps of one process."""

    factor: float
    steps: int
    ns: int
    """Time of all watched steps."""
    median_ns: int
    slow: int
    """Number of slow ones, also those that are not listed."""
    listed: tuple[SlowStep, ...]


class SlowCause(Struct, frozen=True):
    """Slow steps of one cause."""

    cause: str
    count: int
    """Number of these steps, on all ranks."""
    every: int
    """About how many steps there are from one to the next."""
    lost_ns: int
    """Time above the median of all of them."""
    per_step_ns: int
    """The same, averaged over all steps of the run."""
    longest_ns: int
    file: str | None
    line: int | None
    function: str | None
    ranks: tuple[int, ...]


class SlowSteps(Struct, frozen=True):
    """Slow steps of a run by cause, the costliest first."""

    factor: float
    steps: int
    slow: int
    median_ns: int
    causes: tuple[SlowCause, ...]
