"""The trace that users hold in their hands: its tables, and the graph of a window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.graph.dag import window_graph
from traceq.model.tables import Tables

if TYPE_CHECKING:
    import networkx as nx


class Trace(Tables):
    """One trace, as ``traceq.load`` returns it."""

    def graph(
        self, *, step: int | None = None, root: int | None = None
    ) -> nx.DiGraph[tuple[str, int]]:
        """Return the graph of one step, or of one op and what it called.

        Nodes are ``("op", id)``, ``("call", id)`` and ``("kernel", id)`` with the
        columns of their row; edges have a ``kind``: ``parent`` (op to op or call),
        ``launch`` (call to kernel), ``backward`` (forward op to its backward op) and
        ``stream`` (kernel to the next one on its stream).
        """
        return window_graph(self, step=step, root=root)
