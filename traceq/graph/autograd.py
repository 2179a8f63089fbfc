"""Forward ops of backward ops."""

from __future__ import annotations

import polars as pl

from traceq.common.expressions import constant, known
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
    numbered, nodes = ops["sequence"].is_not_null(), is_node(ops)
    backward = ops[["id", "ts", "sequence", "forward_thread"]].filter(numbered & nodes)
    if backward.is_empty():
        return constant(None, ops.height, INDEX).alias("forward")
    forward = ops[["id", "ts", "sequence", "thread"]].filter(numbered & ~nodes)
    threads = _forward_threads(backward, forward)
    # Each step's rows take the place of those before: of a large trace they count.
    backward = backward.join(threads, on="forward_thread").drop("forward_thread")
    backward = backward.sort("ts")
    forward = forward.rename({"id": "twin"}).sort("ts", maintain_order=True)
    twins = backward.join_asof(
        forward,
        on="ts",
        by=["sequence", "thread"],
        allow_exact_matches=False,
        check_sortedness=False,
    )[["id", "twin"]]
    del backward, forward
    twin = constant(None, ops.height, INDEX).scatter(twins["id"], twins["twin"])
    return twin[nearest(ops["parent"], twin.is_not_null())].alias("forward")


def _forward_threads(backward: pl.DataFrame, forward: pl.DataFrame) -> pl.DataFrame:
    """Return the ``thread`` that each of autograd's own numbers of threads is of.

    It is the one on which most pairs are found.
    """
    # Counted without making the pairs: a number may be there any number of times.
    pairs = (
        backward.group_by("sequence", "forward_thread")
        .agg(nodes=pl.len().cast(pl.Int64))
        .join(
            forward.group_by("sequence", "thread").agg(ops=pl.len().cast(pl.Int64)),
            on="sequence",
        )
    )
    return (
        pairs.group_by("forward_thread", "thread")
        .agg(found=(pl.col("nodes") * pl.col("ops")).sum())
        .sort("found", "thread", descending=[True, False])
        .unique("forward_thread", keep="first", maintain_order=True)
        .drop("found")
    )
