"""Which forward op a backward op belongs to."""

from __future__ import annotations

import polars as pl

from traceq.graph.nesting import INDEX, nearest


def is_node(ops: pl.DataFrame) -> pl.Series:
    """Return for each op whether it runs a node of the backward graph."""
    return (ops["forward_thread"] > 0).fill_null(value=False)


def is_numbered(ops: pl.DataFrame) -> pl.Series:
    """Return for each op whether autograd counts it, not being a node of its own."""
    return ops["sequence"].is_not_null() & ~is_node(ops)


def forward_twins(ops: pl.DataFrame) -> pl.Series:
    """Return for each op in a backward pass the forward op that made its node.

    Autograd numbers the nodes of each forward thread; a node's op carries the
    number, and so do the ops around it that began before the node was made. The
    one that began last is the one.
    """
    numbered = ops.filter(pl.col("sequence").is_not_null())
    nodes = is_node(numbered)
    backward, forward = numbered.filter(nodes), numbered.filter(~nodes)
    pairs = backward.select("id", "sequence", "forward_thread", back="ts").join(
        forward.select("sequence", "thread", twin="id", start="ts"), on="sequence"
    )
    # autograd's thread numbers are its own: the thread on which most pairs are found.
    threads = (
        pairs.group_by("forward_thread", "thread")
        .len()
        .sort("len", "thread", descending=[True, False])
        .unique("forward_thread", keep="first", maintain_order=True)
        .drop("len")
    )
    twins = (
        pairs.filter(pl.col("start") < pl.col("back"))
        .join(threads, on=["forward_thread", "thread"], how="semi")
        .sort("id", "start", "twin")
        .unique("id", keep="last", maintain_order=True)
    )
    twin = (
        ops.select("id")
        .join(twins.select("id", "twin"), on="id", how="left", maintain_order="left")[
            "twin"
        ]
        .cast(INDEX)
    )
    return twin[nearest(ops["parent"], twin.is_not_null())].alias("forward")
