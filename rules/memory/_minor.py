"""Severity of a finding on memory, and the GPUs that it could be shared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import Severity

if TYPE_CHECKING:
    from traceq.linter import SnapshotView

# Less than either is not worth another attention or optimizer. Heuristic
# threshold.
_LEAST_SHARE = 0.05
_LEAST_BYTES = 500 << 20
# Below this share of the GPU's memory, nobody lacks what is reserved. Heuristic.
_FULL = 0.5
_ROOM = "less than half of the GPU's memory is reserved"


def severity_of(saved: int, peak: int) -> Severity | None:
    """Return that a finding is minor, if it saves little of the peak."""
    little = saved < _LEAST_BYTES or saved < _LEAST_SHARE * peak
    return Severity.info if little else None


def room(view: SnapshotView, device: int) -> str:
    """Return the reason that nobody lacks memory of a device; empty if some may."""
    if view.trace is None:
        return ""
    devices = view.trace.devices
    total = devices.filter(pl.col("device") == device)["memory"].drop_nulls().max()
    reserved = view.curve.filter(pl.col("device") == device)["reserved"].max()
    if not isinstance(total, int) or not isinstance(reserved, int):
        return ""
    return _ROOM if reserved < _FULL * total else ""


def has_ranks(view: SnapshotView) -> bool:
    """Return whether the program is known to run on several GPUs."""
    facts = view.trace.facts if view.trace else None
    ranks = facts is not None and (facts.world_size or 1) > 1
    return ranks or bool(view.rank) or view.peaks.height > 1
