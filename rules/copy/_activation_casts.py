"""Casts of activations that autocast inserts, between its lists of ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import (
    FLOAT32,
    HALF,
    Evidence,
    View,
    at_function,
    dtype_name,
    fill_false,
    plain,
    text,
)

from ._needless import cast_round_trips

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Row

# These take 16-bit inputs under autocast; without it, other dtypes are an error.
_NARROWING = (
    r"^aten::(linear|matmul|mm|bmm|addmm|baddbmm|einsum|conv\w*"
    r"|scaled_dot_product_attention)$"
)
# NRM001 reports casts for these.
_NORM = r"^aten::(layer_norm|rms_norm|group_norm)$"
_MOST_OPS = 4


def activation_casts(view: View) -> pl.DataFrame:
    """Return the casts of activations by autocast, with those that undo them.

    They are between float32 and 16 bits, inside of ops, and neither casts of weights
    nor for the loss, a norm, or one that CPY002 reports. ``for_op`` is the op of the
    forward. A program is under autocast if matmuls or convolutions cast their inputs.
    """
    op_names = plain(view.trace.ops, view.trace.ops["name"])
    parents = view.trace.ops["parent"]
    casts = view.copies.filter(
        pl.col("part") == "autocast", _between(pl.col("src"), pl.col("dst"))
    )
    undone = pl.coalesce("origin", "request")
    pairs = casts.with_columns(of=undone)
    pairs = pairs.with_columns(for_op=op_names[parents[pairs["of"]]])
    if not pairs.select(
        fill_false(pl.col("for_op").str.contains(_NARROWING)).any()
    ).item():
        return pairs.clear()
    pairs = pairs.filter(~fill_false(pl.col("for_op").str.contains(_NORM)))
    reported = cast_round_trips(view.trace, view.copies)
    if reported.is_empty():
        return pairs
    return pairs.filter(~pl.col("of").is_in(reported["back"].implode()))


def _between(expression: pl.Expr, other: pl.Expr) -> pl.Expr:
    """Return whether a cast is between float32 and 16 bits, either way."""
    return ((expression == FLOAT32) & other.is_in(HALF)) | (
        expression.is_in(HALF) & (other == FLOAT32)
    )


def shared_inputs(view: View, casts: pl.DataFrame) -> list[Row]:
    """Return the lines at which several ops in a row cast one tensor, the most first.

    Ops that follow each other, with no GPU work between them, take what was there
    before the first. A row has the place, ``again``, how many casts are repeated, and
    ``ops``, how many take one tensor.
    """
    forward = casts.filter(pl.col("origin").is_null(), pl.col("dst").is_in(HALF))
    called = view.called_ops
    rows = pl.concat([called[view.kernels["op"]], called[forward["request"]]])
    line = (
        view.trace.ops[["id", "thread", "ts"]][rows.drop_nulls().unique()]
        .sort("thread", "ts")
        .select(called="id", at=pl.int_range(pl.len(), dtype=pl.Int64))
    )
    in_row = (
        forward.with_columns(called=called[forward["request"]])
        .unique("called", keep="none")
        .join(line, on="called")
        .sort("at")
    )
    same = (pl.col("at").diff() == 1) & (
        pl.col("dims").eq_missing(pl.col("dims").shift(1))
    )
    return (
        in_row.with_columns(run=(~fill_false(same)).cum_sum())
        .group_by("run")
        .agg(
            pl.col("file", "line").first(),
            text("function").first(),
            ops=pl.len(),
        )
        .filter(pl.col("ops") > 1)
        .group_by("file", "line", "function")
        .agg(pl.col("ops").max(), again=(pl.col("ops") - 1).sum() / view.steps)
        .sort("again", "file", "line", descending=[True, False, False])
        .rows(named=True)
    )


def half_of(casts: pl.DataFrame) -> str:
    """Return the 16-bit dtype of most of the casts."""
    types = pl.concat([casts["src"], casts["dst"]])
    return str(types.filter(types.is_in(list(HALF))).mode().sort()[0])


def op_lines(view: View, casts: pl.DataFrame) -> Iterator[Evidence]:
    """Yield the ops that ask for most of the casts, each with its line."""
    forward = casts.filter(pl.col("origin").is_null())
    dtypes = forward.select("for_op", "file", "line", "src", "dst").unique(
        ["for_op", "file", "line"], keep="first", maintain_order=True
    )
    groups = (
        casts.group_by("for_op", "file", "line", text("function"), maintain_order=True)
        .agg(
            time=pl.col("dur").sum(),
            calls=pl.col("origin").is_null().sum(),
        )
        .join(
            dtypes,
            on=["for_op", "file", "line"],
            how="left",
            nulls_equal=True,
            maintain_order="left",
        )
        .sort("time", descending=True, maintain_order=True)
    )
    for row in groups.head(_MOST_OPS).iter_rows(named=True):
        place = at_function(row["file"], row["line"], row["function"])
        switch = (
            f"{dtype_name(row['src'])} -> {dtype_name(row['dst'])} "
            if row["src"]
            else ""
        )
        yield Evidence(
            "for",
            f"{row['for_op']} {switch}".strip(),
            value=row["time"] / view.steps,
            unit="ns",
            note=f"a step in {place}" if place else "a step",
            count=row["calls"] / view.steps,
        )
