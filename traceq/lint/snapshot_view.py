"""What a rule on memory looks at: one snapshot, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from traceq.analysis.memory_curve import memory_curve, memory_peaks
from traceq.lint.rule import Need

if TYPE_CHECKING:
    import polars as pl

    from traceq.model.snapshot import Snapshot
    from traceq.recording import Recording
    from traceq.trace import Trace


@dataclass(frozen=True)
class SnapshotView:
    """One rank's snapshot; what is asked of it more than once is computed once."""

    snapshot: Snapshot
    rank: int = 0
    trace: Trace | None = None
    """The trace of the same program, where there is one."""

    @cached_property
    def curve(self) -> pl.DataFrame:
        """Each device's totals after each event."""
        return memory_curve(self.snapshot)

    @cached_property
    def peaks(self) -> pl.DataFrame:
        """The moment of each device's peak."""
        return memory_peaks(self.curve)

    def lacks(self, needs: frozenset[Need]) -> list[str]:
        """Return which needs of a rule are not met, as sentences."""
        facts = self.snapshot.facts
        met = {
            Need.SNAPSHOT: True,
            Need.HISTORY: facts.history,
            Need.CALLERS: facts.stacks,
        }
        return [need.value for need in Need if need in needs and not met.get(need)]


@dataclass(frozen=True)
class Memory:
    """The most that was allocated on one device of one rank."""

    rank: int
    device: int
    allocated: int
    reserved: int
    """Reserved at most, at whatever time."""
    damage: tuple[str, ...]
    """What the snapshots have lost."""


def snapshot_views(recording: Recording) -> tuple[SnapshotView, ...]:
    """Return a view of each snapshot of a recording."""
    return tuple(
        SnapshotView(snapshot, rank, recording.trace)
        for rank, snapshot in recording.snapshots.items()
    )


def highest(views: tuple[SnapshotView, ...]) -> Memory | None:
    """Return where memory was fullest; none if nothing was ever allocated."""
    damage = tuple(
        sentence if len(views) == 1 else f"rank {view.rank}: {sentence}"
        for view in views
        for sentence in view.snapshot.facts.damage
    )
    found = [
        Memory(view.rank, row["device"], row["allocated"], row["most_reserved"], damage)
        for view in views
        for row in view.peaks.iter_rows(named=True)
    ]
    return max(found, key=lambda one: one.allocated, default=None)
