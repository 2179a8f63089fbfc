"""What the GPU did for a part of the program, forward and backward.

A part is an op with all inside it, or a stretch of a thread. Its backward runs on
another thread, in ops that know the forward op they belong to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.graph.nesting import INDEX, nearest
from traceq.intervals import covered
from traceq.words import layer_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceq.trace import Trace

_OVERLOAD = r"\.\w+$"


@cached_per_trace
def plain_names(ops: pl.DataFrame) -> pl.DataFrame:
    """Return the distinct ``name`` of ops with what it is called without overload."""
    return ops.select(pl.col("name").unique()).with_columns(
        plain=pl.col("name").cast(pl.String).str.replace(_OVERLOAD, "")
    )


def named(ops: pl.DataFrame, names: Iterable[str]) -> pl.Series:
    """Return for each op whether it is one of these, in any overload."""
    chosen = plain_names(ops).filter(pl.col("plain").is_in(list(names)))["name"]
    return ops["name"].is_in(chosen.implode()).fill_null(value=False)


@cached_per_trace
def outermost_ops(trace: Trace) -> pl.Series:
    """Return for each op the outermost op around it, or itself."""
    return nearest(trace.ops["parent"], trace.ops["parent"].is_null())


def inside(trace: Trace, chosen: pl.Series) -> pl.Series:
    """Return for each op itself, if its id is chosen, or the nearest such around it."""
    return nearest(trace.ops["parent"], trace.ops["id"].is_in(chosen.implode()))


def during(trace: Trace, spans: pl.DataFrame) -> pl.Series:
    """Return for each op the ``owner`` of the span it starts in.

    Spans are ``owner``, ``thread``, ``start`` and ``end``, and do not overlap.
    """
    found = trace.ops.select("id", "thread", "ts").sort("ts", maintain_order=True)
    found = found.join_asof(
        spans.sort("start"),
        left_on="ts",
        right_on="start",
        by="thread",
        check_sortedness=False,
    )
    within = pl.when(pl.col("ts") <= pl.col("end")).then("owner")
    return found.sort("id").select(within.cast(INDEX)).to_series()


def owned(trace: Trace, kernels: pl.DataFrame, owners: pl.Series) -> pl.DataFrame:
    """Return the kernels of ops that have an owner, and of their backward.

    The owner is added as ``owner``, and in ``back`` whether it ran in the backward.
    """
    forward = trace.ops["forward"].gather(kernels["op"])
    of_forward, of_op = owners.gather(forward), owners.gather(kernels["op"])
    return kernels.with_columns(
        owner=of_forward.zip_with(of_forward.is_not_null(), of_op),
        back=forward.is_not_null(),
    ).filter(pl.col("owner").is_not_null())


def busy(of: pl.Expr | None = None) -> pl.Expr:
    """Return how long kernels ran, each instant counted once; sort them by ts."""
    start, end = pl.col("ts"), pl.col("ts") + pl.col("dur")
    if of is not None:
        start, end = start.filter(of), end.filter(of)
    return covered(start, end).sum()


def same_place() -> list[pl.Expr]:
    """Return what to group by, for all layers of a model to be one group.

    It is the user's line; where that is not known, the modules without their numbers.
    """
    layers = layer_names(pl.col("module"))
    return [
        pl.col("file"),
        pl.col("line"),
        pl.col("function"),
        pl.when(pl.col("file").is_null()).then(layers).alias("layers"),
    ]
