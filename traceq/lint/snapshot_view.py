"""What a rule on memory looks at: one snapshot, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.memory.attention_scores import scores_in_trace
from traceq.analysis.memory.categories import memory_allocations
from traceq.analysis.memory.curve import memory_curve, memory_peaks
from traceq.analysis.memory.lifetimes import live_at
from traceq.analysis.memory.phases import event_phases
from traceq.analysis.memory.stacks import chain_of, stack_sources
from traceq.analysis.memory.trace_allocations import allocating_ops, ops_at
from traceq.analysis.memory.weight_copies import casts
from traceq.finding import Place
from traceq.lint.evidence import module_line
from traceq.lint.need import Need
from traceq.words import listed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.model.snapshot import Snapshot
    from traceq.recording import Recording
    from traceq.trace import Trace

_TWO = 2
_MOST_CALLERS = 3


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

    @cached_property
    def sources(self) -> pl.DataFrame:
        """What each stack says."""
        return stack_sources(self.snapshot)

    @cached_property
    def phases(self) -> pl.DataFrame:
        """The step and the phase of each event."""
        return event_phases(self.snapshot, self.sources)

    @cached_property
    def allocations(self) -> pl.DataFrame:
        """Every allocation, from when to when, where, and what it is for."""
        return memory_allocations(self.snapshot)

    @cached_property
    def at_peak(self) -> pl.DataFrame:
        """What lived when each device was fullest."""
        live = [
            self.live(device, event)
            for device, event in self.peaks.select("device", "event").iter_rows()
        ]
        return pl.concat([self.allocations.clear(), *live])

    def live(self, device: int, event: int | None) -> pl.DataFrame:
        """Return what lived on a device right after an event."""
        mine = self.allocations.filter(pl.col("device") == device)
        return live_at(mine, event)

    def peak(self, device: int) -> int:
        """Return the most that was allocated on a device."""
        mine = self.peaks.filter(pl.col("device") == device)
        return int(mine["allocated"].sum())

    @cached_property
    def steps(self) -> int:
        """How many steps the history shows."""
        return self.phases["step"].drop_nulls().n_unique()

    @cached_property
    def casts(self) -> pl.DataFrame:
        """The allocations that a change of the number format made."""
        return casts(self.snapshot, self.allocations, self._ops)

    @cached_property
    def scores(self) -> pl.DataFrame:
        """The allocations that hold the scores of attention."""
        mine = pl.col("category") == "attention scores"
        if self.trace and not self._names_ops:
            told = scores_in_trace(self.allocations, self.trace)
            mine |= pl.col("alloc").is_in(told.implode())
        return self.allocations.filter(mine)

    @cached_property
    def _names_ops(self) -> bool:
        """Whether the stacks have frames of C++, which name operators."""
        return self.sources["op"].is_not_null().any()

    @cached_property
    def _ops(self) -> pl.DataFrame | None:
        return allocating_ops(self.trace) if self.trace else None

    @property
    def _trace_allocates(self) -> bool:
        return self._ops is not None and self._ops["bytes"].is_not_null().any()

    def place(self, row: Mapping[str, Any], size: int | None = None) -> Place:
        """Return the place of a row that has a file, a line, a function and ``op``.

        ``op`` is one, or a list of all that the row is about.
        The module is that of an op in the trace, in this function and of this size.
        """
        modules = self._in_trace(row, size)["module"].drop_nulls().to_list()
        first = modules[0] if modules else None
        return Place(row["file"], row["line"], row["function"], first)

    def lines(
        self, row: Mapping[str, Any], size: int | None = None
    ) -> list[tuple[str, str]]:
        """Return evidence on a row with a place: callers, ops, modules."""
        callers = chain_of(row["chain"])[1:] if row.get("chain") else []
        known = self._in_trace(row, size)
        ops = _ops(row) or known["op"].unique(maintain_order=True).to_list()
        modules = known["module"].drop_nulls().unique(maintain_order=True).to_list()
        return [
            ("from", listed(callers, _MOST_CALLERS)),
            ("op", listed(ops)),
            *(module_line(modules) if len(modules) > 1 else ()),
        ]

    def _in_trace(self, row: Mapping[str, Any], size: int | None) -> pl.DataFrame:
        """Return the ops of the trace that a row is about."""
        if self._ops is None or not row["file"]:
            return pl.DataFrame(schema={"op": pl.String, "module": pl.String})
        place = (row["file"], row["line"], row["function"])
        return ops_at(self._ops, place, size, _ops(row))

    def lacks(self, needs: frozenset[Need]) -> list[str]:
        """Return which needs of a rule are not met, as sentences."""
        facts = self.snapshot.facts
        met = {
            Need.SNAPSHOT: True,
            Need.HISTORY: facts.history,
            Need.CALLERS: facts.stacks,
            Need.OPERATORS: Need.OPERATORS in needs
            and (self._names_ops or self._trace_allocates),
            Need.MEMORY_STEPS: Need.MEMORY_STEPS in needs and self.steps >= _TWO,
        }
        return [need.value for need in Need if need in needs and not met.get(need)]


def _ops(row: Mapping[str, Any]) -> list[str]:
    """Return the operators that a row's stacks name."""
    found = row.get("op") or []
    names = found if isinstance(found, list) else [found]
    return [f"aten::{name}" for name in names]


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
