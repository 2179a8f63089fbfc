"""View of a memory snapshot's history, for rules on memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.base.callers import PLACE
from traceq.analysis.memory.history import History
from traceq.analysis.memory.stacks import chain_of
from traceq.analysis.memory.trace_allocations import in_trace, made_by, modules
from traceq.common.expressions import text
from traceq.common.words import listed
from traceq.linter.evidence import module_line
from traceq.linter.need import Need
from traceq.model.finding import Evidence, Place
from traceq.model.lint_report import Memory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.model.oom import OutOfMemory
    from traceq.model.recording import Recording

_TWO = 2
_MOST_CALLERS = 3
_PLACES = {
    "file": pl.String,
    "line": pl.Int64,
    "function": pl.String,
    "op": pl.String,
    "size": pl.Int64,
}


class SnapshotView(History, frozen=True):
    """The history of one rank's snapshot, with places and evidence for findings."""

    rank: int = 0
    oom: OutOfMemory | None = None
    """State of the program when memory ran out, if that was recorded."""

    def place(self, row: Mapping[str, Any], size: int | None = None) -> Place:
        """Return the place of a row that has a file, a line, a function and ``op``.

        ``op`` is one, or a list of all that the row is about. The module is that of the
        op in the trace that makes an allocation of this size there.
        """
        instances = _instances(self._made_at(row, size))
        first = instances[0] if instances else None
        return Place(row["file"], row["line"], row["function"], first, line_is="call")

    def lines(self, row: Mapping[str, Any], size: int | None = None) -> list[Evidence]:
        """Return evidence on a row with a place: callers, ops, modules."""
        made = self._made_at(row, size)
        ops = [f"aten::{name}" for name in _ops(row)]
        ops = ops or _distinct(made.filter("fits")["trace_op"])
        instances = _instances(made)
        return [
            *self.callers(row),
            *([Evidence("op", listed(ops))] if ops else ()),
            *(module_line(instances) if len(instances) > 1 else ()),
        ]

    def callers(self, row: Mapping[str, Any]) -> list[Evidence]:
        """Return evidence on a row with a ``chain``: the calls that led there."""
        calls = chain_of(row["chain"])[1:] if row.get("chain") else []
        return [Evidence("from", listed(calls, _MOST_CALLERS))] if calls else []

    def by_line(self, allocations: pl.DataFrame) -> list[dict[str, Any]]:
        """Return the lines that made allocations, the largest first, unknown ones last.

        Rows have a place, ``chain``, ``op`` as a list, what was ``held``, the ``count``
        and the ``largest``.
        """
        return (
            allocations.group_by(PLACE)
            .agg(
                pl.col("chain").first(),
                text("op").drop_nulls().unique().sort(),
                held=pl.sum("size"),
                count=pl.len(),
                largest=pl.max("size"),
            )
            .sort(pl.col("file").is_null(), -pl.col("held"), "file", "line")
            .to_dicts()
        )

    def _made_at(self, row: Mapping[str, Any], size: int | None) -> pl.DataFrame:
        """Return the ops of the trace that a row is about, by each of its own ops."""
        place = [row[name] for name in PLACE]
        names: list[str | None] = [*_ops(row)]
        rows = [(*place, name, size) for name in names or [None]]
        places = pl.DataFrame(rows, schema=_PLACES, orient="row")
        matched = in_trace(places.with_row_index("key"), self.trace_ops)
        return made_by(matched, self.trace_ops)

    def lacks(self, needs: frozenset[Need]) -> list[str]:
        """Return the unmet needs of a rule, as sentences."""
        facts = self.snapshot.facts
        met = {
            Need.SNAPSHOT: True,
            Need.HISTORY: facts.history,
            Need.CALLERS: facts.stacks,
            Need.OPERATORS: Need.OPERATORS in needs
            and (self.names_ops or self.trace_ops["bytes"].is_not_null().any()),
            Need.MEMORY_STEPS: Need.MEMORY_STEPS in needs and self.steps >= _TWO,
        }
        return [need.value for need in Need if need in needs and not met.get(need)]


def _instances(made: pl.DataFrame) -> list[str]:
    """Return the modules that made something, in order."""
    return _distinct(modules(made)["instances"].explode())


def _distinct(values: pl.Series) -> list[str]:
    return values.drop_nulls().unique(maintain_order=True).to_list()


def _ops(row: Mapping[str, Any]) -> list[str]:
    """Return the operators that a row's stacks name."""
    ops = row.get("op") or []
    return ops if isinstance(ops, list) else [ops]


def snapshot_views(recording: Recording) -> tuple[SnapshotView, ...]:
    """Return a view of each snapshot of a recording."""
    return tuple(
        SnapshotView(snapshot, recording.trace, rank, recording.failures.get(rank))
        for rank, snapshot in recording.snapshots.items()
    )


def highest(views: tuple[SnapshotView, ...]) -> Memory | None:
    """Return the highest peak; none if nothing was ever allocated."""
    damage = tuple(
        sentence if len(views) == 1 else f"rank {view.rank}: {sentence}"
        for view in views
        for sentence in view.snapshot.facts.damage
    )
    peaks = [
        Memory(view.rank, row["device"], row["allocated"], row["max_reserved"], damage)
        for view in views
        for row in view.peaks.iter_rows(named=True)
    ]
    return max(peaks, key=lambda peak: peak.allocated, default=None)
