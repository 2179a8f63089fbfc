"""Forward ops of backward ops."""

from __future__ import annotations

import polars as pl

from traceq.common.expressions import known
from traceq.graph.nesting import INDEX, nearest


def is_node(ops: pl.DataFrame) -> pl.Series:
    """Return for each op whether it runs a node of the backward graph."""
    return known(ops["forward_thread"] > 0)


def is_numbered(ops: pl.DataFrame) -> pl.Series:
    """Return for each op whether autograd numbers it, without being a node itself."""
    return ops["sequence"].is_not_null() & ~is_node(ops)


def forward_twins(ops: pl.DataFrame) -> pl.Series:
    """Return for each op in a backward pass the forward op that made its node.

    Autograd numbers the nodes of each forward thread; a node's op carries the
    number, and so do the ops around it that began before the node was made. The
    one that began last is the one.
    """
    # Of a wide table few columns matter here.
    few = ops[["id", "thread", "ts", "sequence", "forward_thread"]]
    numbered = few.filter(ops["sequence"].is_not_null())
    nodes = is_node(numbered)
    backward, forward = numbered.filter(nodes), numbered.filter(~nodes)
    # Counted without making the pairs: a number may be there any number of times.
    pairs = (
        backward.group_by("sequence", "forward_thread")
        .agg(nodes=pl.len().cast(pl.Int64))
        .join(
            forward.group_by("sequence", "thread").agg(ops=pl.len().cast(pl.Int64)),
            on="sequence",
        )
    )
    # autograd's thread numbers are its own: the thread on which most pairs are found.
    threads = (
        pairs.group_by("forward_thread", "thread")
        .agg(found=(pl.col("nodes") * pl.col("ops")).sum())
        .sort("found", "thread", descending=[True, False])
        .unique("forward_thread", keep="first", maintain_order=True)
        .drop("found")
    )
    twins = (
        backward.select("id", "sequence", "forward_thread", "ts")
        .join(threads, on="forward_thread")
        .sort("ts")
        .join_asof(
            forward.sort("ts", "id").select("sequence", "thread", "ts", twin="id"),
            on="ts",
            by=["sequence", "thread"],
            allow_exact_matches=False,
            check_sortedness=False,
        )
    )
    twin = (
        ops[["id"]]
        .join(twins.select("id", "twin"), on="id", how="left", maintain_order="left")[
            "twin"
        ]
        .cast(INDEX)
    )
    return twin[nearest(ops["parent"], twin.is_not_null())].alias("forward")
