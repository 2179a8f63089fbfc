"""View of a window as a networkx graph: for exploration, not for millions of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.errors import UsageError
from traceq.graph.nesting import nearest

if TYPE_CHECKING:
    import networkx as nx

    from traceq.model.tables import Tables

_OP_COLUMNS = ("id", "name", "ts", "dur", "self_dur", "phase", "module", "file", "line")
_CALL_COLUMNS = ("id", "name", "call", "ts", "dur")
_KERNEL_COLUMNS = ("id", "name", "kind", "stream", "ts", "dur")


def window_graph(
    trace: Tables, *, step: int | None, root: int | None
) -> nx.DiGraph[tuple[str, int]]:
    """Build the graph of the ops of a step, or under a root, and their launches."""
    ops = _chosen_ops(trace, step, root)
    inside = ops.select(op="id")
    calls = trace.runtime.join(inside, on="op", how="semi")
    if root is None:
        # Some calls are made outside of any op.
        loose = trace.runtime.filter(pl.col("op").is_null(), pl.col("step") == step)
        calls = pl.concat([calls, loose])
    kernels = _started_kernels(trace, calls, step if root is None else None)

    # The command line never draws a graph, and would start a fifth slower with it.
    from networkx import DiGraph  # noqa: PLC0415

    graph: nx.DiGraph[tuple[str, int]] = DiGraph()
    for kind, frame, columns in (
        ("op", ops, _OP_COLUMNS),
        ("call", calls, _CALL_COLUMNS),
        ("kernel", kernels, _KERNEL_COLUMNS),
    ):
        for row in frame.select(columns).iter_rows(named=True):
            graph.add_node((kind, row["id"]), **row)
    _add(graph, "parent", "op", "op", ops.select("parent", "id"))
    _add(graph, "parent", "op", "call", calls.select("op", "id"))
    _add(graph, "launch", "call", "kernel", kernels.select("launch", "id"))
    _add(graph, "backward", "op", "op", ops.select("forward", "id"))
    following = kernels.sort("device", "stream", "ts", "id").select(
        pl.col("id").shift(1).over("device", "stream").alias("before"), "id"
    )
    _add(graph, "stream", "kernel", "kernel", following)
    return graph


def _chosen_ops(trace: Tables, step: int | None, root: int | None) -> pl.DataFrame:
    if root is not None:
        if not 0 <= root < trace.ops.height:
            msg = f"there is no op {root}; ops are numbered 0 to {trace.ops.height - 1}"
            raise UsageError(msg)
        is_root = trace.ops["id"] == root
        under = nearest(trace.ops["parent"], is_root).is_not_null()
        return trace.ops.filter(under)
    numbers = trace.steps["step"].to_list()
    if step not in numbers:
        wanted = (
            "give a step or a root op" if step is None else f"there is no step {step}"
        )
        steps = ", ".join(str(number) for number in numbers) or "none"
        msg = f"{wanted}; the steps of this trace are: {steps}"
        raise UsageError(msg)
    return trace.host_ops.filter(pl.col("step") == step)


def _started_kernels(
    trace: Tables, calls: pl.DataFrame, step: int | None
) -> pl.DataFrame:
    """Return the work that these calls started, and work without any launch."""
    wanted = pl.col("launch").is_in(calls["id"].implode())
    if step is not None:
        wanted |= pl.col("launch").is_null() & (pl.col("step") == step)
    return trace.kernels.filter(wanted)


def _add(
    graph: nx.DiGraph[tuple[str, int]],
    kind: str,
    from_kind: str,
    to_kind: str,
    pairs: pl.DataFrame,
) -> None:
    """Add an edge for each pair of rows that are both in the window."""
    for source, target in pairs.drop_nulls().iter_rows():
        start, end = (from_kind, source), (to_kind, target)
        if start in graph and end in graph:
            graph.add_edge(start, end, kind=kind)
