"""Trace: the public object, with its tables and the graph of a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceq.model.schema import TABLES
from traceq.model.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    import networkx as nx
    import polars as pl

    from traceq.model.facts import Facts
    from traceq.model.run import Rank, Run


@dataclass(frozen=True, repr=False)
class Trace(Tables):
    """One trace, as ``traceq.load`` returns it."""

    run: Run | None = None
    """The run it was recorded in, if it was loaded from a run folder."""
    rank: Rank | None = None
    """The process of that run."""
    captures: int = 0
    """Number of traces of captures of CUDA graphs that were at hand."""

    @property
    def step_ns(self) -> int | None:
        """Duration of a step like the recorded ones without the profiler, if measured.

        None where other steps must have been timed than recorded.
        """
        if self.rank is None or self.rank.step_time is None or self.step_in_doubt:
            return None
        return self.rank.step_time.like(self._recorded(), self.rank.window)

    @property
    def step_in_doubt(self) -> bool:
        """True if the measured step cannot be one of the recorded ones."""
        return self.doubtful_step_ns is not None

    @property
    def doubtful_step_ns(self) -> int | None:
        """The measured step time that cannot be of the recorded steps, if any."""
        if self.rank is None or self.rank.step_time is None:
            return None
        measured, recorded = self.rank.step_time, self._recorded()
        if not measured.doubt(recorded, self.rank.window):
            return None
        return measured.like(recorded, self.rank.window)

    def _recorded(self) -> list[int]:
        return self.steps.filter("averaged")["time"].to_list()

    @classmethod
    def of(cls, facts: Facts, tables: Mapping[str, pl.DataFrame]) -> Trace:
        """Return the trace that has these tables."""
        return cls(facts, **{name: tables[name] for name in TABLES})  # type: ignore[arg-type]  # the names of the tables are its fields

    def graph(
        self, *, step: int | None = None, root: int | None = None
    ) -> nx.DiGraph[tuple[str, int]]:
        """Return the graph of one step, or of one op and what it called.

        Nodes are ``("op", id)``, ``("call", id)`` and ``("kernel", id)`` with the
        columns of their row; edges have a ``kind``: ``parent`` (op to op or call),
        ``launch`` (call to kernel), ``backward`` (forward op to its backward op) and
        ``stream`` (kernel to the next one on its stream).
        """
        from traceq.graph.dag import window_graph  # noqa: PLC0415 - few ask for it

        return window_graph(self, step=step, root=root)
