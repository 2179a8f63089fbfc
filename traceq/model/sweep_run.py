"""Runs of a sweep: what each configuration of a program took, as it was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from pathlib import Path


class OwnNumber(Struct, frozen=True):
    """A number that the program recorded or printed during a run."""

    last: float | None
    """None if it was not finite."""
    mean: float | None
    std: float | None
    n: int


class SweepRun(Struct, frozen=True, kw_only=True):
    """One run of a configuration."""

    name: str
    labels: dict[str, str]
    repeat: int
    status: str
    """``ok``, ``out of memory``, ``failed``, ``timed out`` or ``not measured``."""
    reason: str
    """Reason, if the run was not measured."""
    step_ns: float | None = None
    """Mean time of a step without the profiler."""
    step_std_ns: float | None = None
    """Standard deviation over the steps."""
    steps: int = 0
    """Number of steps that were timed."""
    peak_bytes: int | None = None
    """Most bytes allocated in these steps, by torch's allocator."""
    no_peak: str = ""
    """Reason why there is none."""
    parameters: float | None = None
    tokens: float | None = None
    """Tokens of a step, as the author says."""
    flops: float | None = None
    """FLOPs of a step, as the author says, else as its trace shows."""
    peak_tflops: float | None = None
    """Peak of the GPU, as the author says."""
    numbers: dict[str, OwnNumber] = {}
    device: str = ""
    folder: Path | None = None
    """Run folder with the trace; none where nothing was traced."""

    @property
    def ok(self) -> bool:
        """True if the run was measured."""
        return self.status == "ok" and self.step_ns is not None


class SweepRuns(Struct, frozen=True):
    """A sweep's folder."""

    folder: Path
    command: tuple[str, ...]
    planned: int
    """Number of runs of the whole sweep."""
    seed: int | None
    runs: tuple[SweepRun, ...]
    """Those that have ended, by name."""
    grid: dict[str, tuple[str, ...]]
    """Values of each label, as the user wrote them."""
