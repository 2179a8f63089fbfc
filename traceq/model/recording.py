"""Recording of one program: trace, log, true step time, memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

    from traceq.model.oom import OutOfMemory
    from traceq.model.slow_steps import SlowRun
    from traceq.model.snapshot import Snapshot
    from traceq.model.trace import Trace


@dataclass(frozen=True)
class Recording:
    """The inputs that lint analyses together."""

    name: str
    """The path that was given."""
    trace: Trace | None = None
    log: pl.DataFrame | None = None
    """The lines of what the program printed, as ``line`` and ``text``."""
    step_ns: int | None = None
    """Duration of a step without the profiler, where that was measured."""
    snapshots: Mapping[int, Snapshot] = field(default_factory=dict)
    """Memory snapshots, by rank; one that was given alone is rank 0."""
    failures: Mapping[int, OutOfMemory] = field(default_factory=dict)
    """Out-of-memory errors, by rank."""
    slow: Mapping[int, SlowRun] = field(default_factory=dict)
    """Slow steps of the whole run, by rank."""
