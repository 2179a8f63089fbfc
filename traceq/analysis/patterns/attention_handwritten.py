"""Attention that a program writes itself: product, softmax, product."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import (
    busy,
    during,
    inside,
    named,
    owned,
    plain_names,
    same_place,
)
from traceq.analysis.patterns.attention import SDPA

if TYPE_CHECKING:
    from traceq.trace import Trace

# Where a batched product has its two matrices.
_PRODUCTS = {"aten::bmm": 0, "aten::baddbmm": 1}
_SOFTMAX = "aten::_softmax"
_AROUND_PRODUCT = ("aten::matmul", "aten::einsum")


def handwritten_attention(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return attention written by hand, one row for the same shapes at the same place.

    A row has ``scores``, the shape that softmax was given, ``type``, the shapes of
    ``query``, ``key`` and ``value`` as [1, batch and heads, sequence, head dim], the
    place, ``calls``, ``modules``, ``ops``, ``kernels``, ``gpu_ns``, ``host_ns``,
    whether there is a ``backward``, and of the first call the ops one after the other,
    their names as ``steps`` and the shapes they were ``given``.
    """
    spans = _spans(trace)
    owners = during(trace, spans.select("owner", "thread", "start", "end"))
    ran = owned(trace, kernels, owners).sort("ts", "id")
    source = trace.ops.select("module", "file", "line", "function", owner="id")
    rows = (
        ran.drop("module", "file", "line", "function")
        .join(spans.drop("thread"), on="owner", maintain_order="left")
        .join(source, on="owner", maintain_order="left")
        .group_by(
            *("scores", "type", "query", "key", "value"),
            *same_place(),
            maintain_order=True,
        )
        .agg(
            calls=pl.col("owner").n_unique(),
            modules=pl.col("module").cast(pl.String).unique(maintain_order=True),
            module=pl.col("module").cast(pl.String).drop_nulls().first(),
            ops=pl.col("owner").unique(maintain_order=True),
            kernels=pl.col("id"),
            gpu_ns=busy(),
            # Each call once, however many kernels it has.
            host_ns=(pl.col("end") - pl.col("start"))
            .filter(pl.col("owner").is_first_distinct())
            .sum(),
            backward=pl.col("back").any(),
            first=pl.col("owner").min(),
        )
    )
    steps = _steps(trace, owners, rows["first"])
    return rows.join(steps, on="first", how="left", maintain_order="left")


def _steps(trace: Trace, owners: pl.Series, first: pl.Series) -> pl.DataFrame:
    """Return the outermost ops of the first calls, their names and shapes as lists."""
    among = owners.is_in(first.implode()).fill_null(value=False)
    nested = among.gather(trace.ops["parent"]).fill_null(value=False)
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
    """Return where attention is written: ``owner`` (its softmax), from when to when."""
    ops = trace.ops
    wanted = named(ops, [*_PRODUCTS, _SOFTMAX]) & ~ops["compiling"]
    found = (
        ops.filter(wanted)
        .select("id", "name", "thread", "ts", "dur", "inputs")
        .join(plain_names(ops), on="name", maintain_order="left")
        .join(
            trace.inputs.select("dims", "types", inputs="id"), on="inputs", how="left"
        )
        .sort("thread", "ts")
    )
    at = pl.col("plain").replace_strict(_PRODUCTS, default=0)
    left = pl.col("dims").list.get(at, null_on_oob=True)
    right = pl.col("dims").list.get(at + 1, null_on_oob=True)
    found = found.with_columns(
        product=pl.col("plain") != _SOFTMAX,
        left=left,
        right=right,
        scores=pl.col("dims").list.first(),
        type=pl.col("types").list.get(at, null_on_oob=True),
    )
    before = ("id", "product", "left", "right", "type")
    found = found.with_columns(
        *(
            pl.col(name).shift(1).over("thread").alias(f"{name}_before")
            for name in before
        ),
        *(
            pl.col(name).shift(-1).over("thread").alias(f"{name}_after")
            for name in before
        ),
    ).filter(~pl.col("product"), "product_before", "product_after")
    return _with_times(trace, found.filter(*_fits()))


def _fits() -> list[pl.Expr]:
    """Return whether the shapes are those of scores made and used."""
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
    in_product = inside(trace, ops.filter(named(ops, _AROUND_PRODUCT))["id"])
    in_sdpa = inside(trace, ops.filter(named(ops, [SDPA]))["id"])

    def around(ids: pl.Series) -> pl.Series:
        outer = in_product.gather(ids)
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
