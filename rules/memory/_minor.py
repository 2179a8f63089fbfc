"""Severity of a finding on memory, and the GPUs that it could be shared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.linter import Severity

if TYPE_CHECKING:
    from traceq.linter import SnapshotView

# Less than either is not worth another attention or optimizer. Heuristic
# threshold.
_LEAST_SHARE = 0.05
_LEAST_BYTES = 500 << 20


def severity_of(saved: int, peak: int) -> Severity | None:
    """Return that a finding is minor, if it saves little of the peak."""
    little = saved < _LEAST_BYTES or saved < _LEAST_SHARE * peak
    return Severity.info if little else None


def has_ranks(view: SnapshotView) -> bool:
    """Return whether the program is known to run on several GPUs."""
    facts = view.trace.facts if view.trace else None
    ranks = facts is not None and (facts.world_size or 1) > 1
    return ranks or bool(view.rank) or view.peaks.height > 1
