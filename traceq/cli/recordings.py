"""The names of ``traceq.opening.recordings``, until nothing asks for them here."""

from __future__ import annotations

from traceq.opening.recordings import (
    load_program,
    load_recording,
    load_shown,
    log_shown,
    programs,
    ranks_of,
    snapshot_of,
    traces,
)

__all__ = [
    "load_program",
    "load_recording",
    "load_shown",
    "log_shown",
    "programs",
    "ranks_of",
    "snapshot_of",
    "traces",
]
