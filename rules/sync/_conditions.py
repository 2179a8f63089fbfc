"""Values that the host reads as conditions, by the ops that compare before the read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import fill_false, named, named_like

if TYPE_CHECKING:
    from traceq.linter import View

_FINITE = ("aten::isnan", "aten::isinf", "aten::isfinite")
_TESTS = (
    *_FINITE,
    *(f"aten::{name}" for name in ("any", "all", "isposinf", "isneginf", "isclose")),
    *(f"aten::{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    *(f"aten::logical_{name}" for name in ("not", "and", "or", "xor")),
)
_READ = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero")


def with_tests(view: View, waits: pl.DataFrame) -> pl.DataFrame:
    """Return waits with the ops that compare right before each: ``tests``.

    ``asked`` is the last of them, as ``any``, or ``bool`` by the type of what is read;
    null where no condition is read. ``finite`` is whether they ask for NaN or inf, and
    ``computed`` whether what the op takes comes of any.
    """
    ops, outside = view.trace.ops, ~_inside(view)
    threads = waits["thread"].unique().implode()
    order = (
        ops.select(
            *("id", "thread", "ts", "name"),
            test=named(ops, _TESTS),
            finite=named(ops, _FINITE),
        )
        .filter(outside & ops["thread"].is_in(threads))
        .sort("thread", "ts")
        .with_columns(begins=_changes("thread") | _changes("test"))
        .with_columns(run=pl.col("begins").cum_sum())
        .with_columns(
            before=pl.col("run").shift(1),
            tested=pl.col("test").shift(1) & ~_changes("thread"),
        )
    )
    runs = (
        order.filter("test")
        .group_by(before="run")
        .agg(
            asked=pl.col("name").last().cast(pl.String).str.strip_prefix("aten::"),
            finite=pl.col("finite").any(),
            tests="id",
        )
    )
    before = order.filter("tested").select("before", top="id")
    rows = waits.join(before, on="top", how="left", maintain_order="left")
    rows = rows.join(runs, on="before", how="left", maintain_order="left")
    read = pl.col("cause").is_in(list(_READ))
    asked = pl.when(_of_bool(view, rows)).then(pl.lit("bool"))
    return rows.drop("before").with_columns(
        computed=pl.col("asked").is_not_null(),
        asked=pl.when(read).then(pl.coalesce("asked", asked)),
        finite=fill_false(pl.col("finite")) & read,
        tests=pl.when(read).then("tests"),
    )


def _changes(name: str) -> pl.Expr:
    return pl.col(name).ne_missing(pl.col(name).shift(1))


def _inside(view: View) -> pl.Series:
    """Return which ops others of torch's own call."""
    ops = view.trace.ops
    own = named_like(ops, "^aten::")
    return fill_false(own[ops["parent"]])


def _of_bool(view: View, waits: pl.DataFrame) -> pl.Series:
    """Return which waits read a value of type bool."""
    inputs = view.trace.ops["inputs"][waits["top"]]
    first = view.trace.inputs["types"].list.first()[inputs]
    return fill_false(first.cast(pl.String) == "bool")
