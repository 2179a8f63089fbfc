"""Key and value heads that are materialised to match the query heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import ownership
from traceq.analysis.patterns import attention
from traceq.linter import NOTHING, asof, has_named, named, nth

if TYPE_CHECKING:
    from traceq.linter import Trace

# Kernels that support grouped heads, and so need no copies.
_WITH_GROUPS = ("flash", "cudnn")
_CLONE = "aten::clone"
_AROUND_CLONE = ("aten::repeat_interleave", "aten::reshape", "aten::contiguous")
# Heads and repeats are neighbours among five dims, before or after the sequence.
_DIMS = 5
_REPEATS_AT = (2, 3)


def repeated_heads(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return copies that repeat heads for the attention after them, by place and shape.

    A row has ``heads`` before the copy, ``repeats``, ``query`` and ``key`` (shapes) and
    ``backend`` of the attention, and what ``by_place`` adds, of the forward.
    """
    expanded = _expanded(trace)
    if not expanded.height or not has_named(trace.ops, [_CLONE]):
        return NOTHING
    copies = _copies(trace, expanded)
    if not copies.height:
        return NOTHING
    calls = attention.attention_calls(trace).filter(
        pl.col("backend").is_in(_WITH_GROUPS)
    )
    times = trace.ops.select("thread", call_ts="ts", owner="id")
    after = calls.join(times, on="owner").rename({"owner": "call"})
    repeats = (
        asof(copies, after, "ts", "call_ts", by="thread", strategy="forward")
        .filter(
            pl.col("key").list.get(1) == pl.col("heads") * pl.col("repeats"),
            pl.col("key").list.get(1) == pl.col("query").list.get(1),
            pl.col("key").list.get(2) == pl.col("length"),
            pl.col("key").list.get(3) == pl.col("width"),
        )
        .select("owner", "heads", "repeats", "query", "key", "backend")
    )
    # Kernels have dozens of columns: these alone are asked for.
    ran = kernels[["id", "op", "ts", "dur"]]
    ran = ownership.owned(trace, ran, ownership.inside(trace, repeats["owner"])).filter(
        ~pl.col("back")
    )
    return ownership.by_place(
        ownership.at_owner(trace, ran).join(repeats, on="owner"),
        ("heads", "repeats", "query", "key", "backend"),
    )


def _expanded(trace: Trace) -> pl.DataFrame:
    """Return the inputs that were expanded along the dim after their heads."""
    strides = (nth("strides", at) == 0 for at in _REPEATS_AT)
    return trace.inputs.select(
        inputs="id", dims=nth("dims", 0), strides=nth("strides", 0)
    ).filter(pl.col("dims").list.len() == _DIMS, pl.any_horizontal(strides))


def _copies(trace: Trace, expanded: pl.DataFrame) -> pl.DataFrame:
    """Return clones of these tensors, a row for each dim that was expanded."""
    ops = trace.ops
    clones = (
        ops[["id", "thread", "ts", "inputs"]]
        .filter(named(ops, [_CLONE]) & ~ops["compiling"])
        .join(expanded, on="inputs", maintain_order="left")
    )
    outer = ownership.inside(trace, ops["id"].filter(named(ops, _AROUND_CLONE)))[
        clones["id"]
    ]
    clones = clones.with_columns(
        owner=outer.zip_with(outer.is_not_null(), clones["id"])
    )
    dims, strides = pl.col("dims").list, pl.col("strides").list
    return pl.concat(
        clones.filter(strides.get(at, null_on_oob=True) == 0, dims.get(at) > 1).select(
            *("owner", "thread", "ts"),
            heads=dims.get(at - 1),
            repeats=dims.get(at),
            length=dims.get(3 if at == _REPEATS_AT[0] else 1),
            width=dims.get(4),
        )
        for at in _REPEATS_AT
    )
