"""Copies that send to the GPU what operators make on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import Fix, fill_false, named_like
from traceq.model import names

from ._cpu_tensors import VIEWS

if TYPE_CHECKING:
    from collections.abc import Collection

    from traceq.linter import View

# What is asked for on the way, beside views: it sends, or leaves the tensor as it is.
_ON_THE_WAY = rf"{VIEWS}|^aten::(to|_to_copy|lift_fresh|pin_memory|is_pinned)$"


def sending(view: View, ops: Collection[int]) -> list[Fix]:
    """Return the copies of what these operators make, which go if the GPU makes it.

    Each is the next that its thread does after one of them, views and casts aside.
    """
    copies = view.copies
    copies = copies.filter(
        named_like(copies, names.HTOD), pl.col("request").is_not_null()
    )
    if not copies.height:
        return []
    called = view.outermost_ops
    made = called[pl.Series([*ops], dtype=pl.UInt32)].unique()
    sent = copies.select("id", "request", at=called[copies["request"]])
    rows = view.trace.ops[["id", "thread", "ts"]].filter(
        view.trace.ops["parent"].is_null()
    )
    ordered = rows.sort("thread", "ts").with_columns(
        makes=pl.col("id").is_in(made.implode()),
        sends=pl.col("id").is_in(sent["at"].implode()),
        passes=named_like(view.trace.ops, _ON_THE_WAY)[rows["id"]],
    )
    other = pl.when(pl.col("makes") | ~pl.col("passes")).then("makes")
    before = other.forward_fill().shift(1).over("thread")
    after = ordered.filter(pl.col("sends"), fill_false(before))["id"]
    moved = sent.filter(pl.col("at").is_in(after.implode()))
    return [Fix(kernels=moved["id"], ops=moved["request"])] if moved.height else []
