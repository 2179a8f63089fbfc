"""Attention that a program writes itself: matmul, softmax, matmul."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import (
    at_owner,
    by_place,
    during,
    host_totals,
    host_work,
    inside,
    named,
    owned,
    plain_names,
)
from traceq.analysis.patterns.attention import SDPA
from traceq.expressions import known

if TYPE_CHECKING:
    from traceq.trace import Trace

# Which input of a batched matmul is the first of its two matrices.
_MATMULS = {"aten::bmm": 0, "aten::baddbmm": 1}
_SOFTMAX = "aten::_softmax"
_AROUND_MATMUL = ("aten::matmul", "aten::einsum")


def handwritten_attention(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return attention written by hand, one row for the same shapes at the same place.

    A row has ``scores``, the shape of the softmax's input, ``type``, the shapes of
    ``query``, ``key`` and ``value`` as [1, batch and heads, sequence, head dim], what
    ``by_place`` and ``host_totals`` add, whether there is a ``backward``, and the ops
    of the first call in their order: names as ``steps``, shapes of their inputs as
    ``given``.
    """
    spans = _spans(trace)
    owners = during(trace, spans.select("owner", "thread", "start", "end"))
    ran = owned(trace, kernels, owners)
    found = spans.drop("thread", "start", "end").join(
        host_work(trace, owners), on="owner"
    )
    rows = by_place(
        at_owner(trace, ran).join(found, on="owner"),
        ("scores", "type", "query", "key", "value"),
        **host_totals(),
        backward=pl.col("back").any(),
        first=pl.col("owner").min(),
    )
    steps = _steps(trace, owners, rows["first"])
    return rows.join(steps, on="first", how="left", maintain_order="left")


def _steps(trace: Trace, owners: pl.Series, first: pl.Series) -> pl.DataFrame:
    """Return the outermost ops of the first calls, their names and shapes as lists."""
    among = known(owners.is_in(first.implode()))
    nested = known(among.gather(trace.ops["parent"]))
    return (
        trace.ops.with_columns(first=owners)
        .filter(among & ~nested)
        .join(plain_names(trace.ops), on="name")
        .join(trace.inputs.select("dims", inputs="id"), on="inputs", how="left")
        .sort("ts")
        .group_by("first")
        .agg(steps="plain", given="dims")
    )


def _spans(trace: Trace) -> pl.DataFrame:
    """Return attention by its softmax, the ``owner``, with ``start`` and ``end``."""
    ops = trace.ops
    wanted = named(ops, [*_MATMULS, _SOFTMAX]) & ~ops["compiling"]
    found = (
        ops.filter(wanted)
        .select("id", "name", "thread", "ts", "dur", "inputs")
        .join(plain_names(ops), on="name", maintain_order="left")
        .join(
            trace.inputs.select("dims", "types", inputs="id"), on="inputs", how="left"
        )
        .sort("thread", "ts")
    )
    at = pl.col("plain").replace_strict(_MATMULS, default=0)
    left = pl.col("dims").list.get(at, null_on_oob=True)
    right = pl.col("dims").list.get(at + 1, null_on_oob=True)
    found = found.with_columns(
        matmul=pl.col("plain") != _SOFTMAX,
        left=left,
        right=right,
        scores=pl.col("dims").list.first(),
        type=pl.col("types").list.get(at, null_on_oob=True),
    )
    before = ("id", "matmul", "left", "right", "type")
    found = found.with_columns(
        *(
            pl.col(name).shift(1).over("thread").alias(f"{name}_before")
            for name in before
        ),
        *(
            pl.col(name).shift(-1).over("thread").alias(f"{name}_after")
            for name in before
        ),
    ).filter(~pl.col("matmul"), "matmul_before", "matmul_after")
    return _with_times(trace, found.filter(*_fits()))


def _fits() -> list[pl.Expr]:
    """Return whether the first matmul makes the scores, and the second uses them."""
    scores = pl.col("scores")
    rows = scores.list.eval(pl.element().product()).list.first() // scores.list.last()

    def size(name: str, index: int) -> pl.Expr:
        return pl.col(name).list.get(index, null_on_oob=True)

    return [
        scores.list.len() >= 3,  # noqa: PLR2004 - batches of matrices
        scores.list.eval(pl.element().min()).list.first() > 0,
        size("left_before", 0) * size("left_before", 1) == rows,
        size("right_before", 2) == scores.list.last(),
        size("left_after", 0) * size("left_after", 1) == rows,
        size("left_after", 2) == scores.list.last(),
    ]


def _with_times(trace: Trace, found: pl.DataFrame) -> pl.DataFrame:
    ops = trace.ops
    in_matmul = inside(trace, ops.filter(named(ops, _AROUND_MATMUL))["id"])
    in_sdpa = inside(trace, ops.filter(named(ops, [SDPA]))["id"])

    def around(ids: pl.Series) -> pl.Series:
        outer = in_matmul.gather(ids)
        return outer.zip_with(outer.is_not_null(), ids)

    first, last = around(found["id_before"]), around(found["id_after"])
    batch_and_heads = pl.col("left_before").list.get(0)

    def shaped(sequence: pl.Expr, width: pl.Expr) -> pl.Expr:
        # As long as the others: older Polars do not stretch a literal to no rows.
        one = pl.repeat(1, pl.len(), dtype=pl.Int64)
        return pl.concat_list(one, batch_and_heads, sequence, width)

    left, right = pl.col("left_before").list, pl.col("right_before").list
    return (
        found.with_columns(
            start=ops["ts"].gather(first),
            end=(ops["ts"] + ops["dur"]).gather(last),
        )
        .filter(in_sdpa.gather(found["id"]).is_null())
        .select(
            "thread",
            "start",
            "end",
            "scores",
            owner="id",
            type="type_before",
            query=shaped(left.get(1), left.get(2)),
            key=shaped(right.get(2), left.get(2)),
            value=shaped(
                right.get(2), pl.col("right_after").list.get(2, null_on_oob=True)
            ),
        )
    )
