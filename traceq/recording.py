"""What was recorded of one program: its trace, its log, its true step time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

    from traceq.trace import Trace


@dataclass(frozen=True)
class Recording:
    """What lint looks at together."""

    name: str
    """The path that was given."""
    trace: Trace | None = None
    log: pl.DataFrame | None = None
    """The lines of what the program printed, as ``line`` and ``text``."""
    step_ns: int | None = None
    """What a step takes without the profiler, where that was measured."""
