"""Heads of a vocabulary, and how many of their positions the program reads."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.patterns import matmul
from traceq.linter import (
    NOTHING,
    SIZES,
    asof,
    first_sizes,
    named,
    named_like,
    nth,
    plain,
    roofline_ns,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Row, View

_PICKS = ("aten::select", "aten::slice", "aten::index", "aten::index_select")
# What computes each position alone: what nobody reads goes with the head's own work.
_BY_POSITION = (
    r"^aten::(copy_|_to_copy|to|clone|contiguous|div_?|mul_?|add_?|sub_?|tanh_?)(\.|$)"
)
_TO_HOST = "Memcpy DtoH"
_BATCHED = ("aten::bmm", "aten::baddbmm")


def heads(view: View, least: int) -> pl.DataFrame:
    """Return the matmuls of the forward that compute at least this many columns.

    A row is an op, with ``rows``, ``columns`` and ``deep`` of its matmul, its ``type``,
    ``thread``, ``ts``, and where it ends.
    """
    calls = matmul.matmuls(view.trace, view.kernels, "")
    if not calls.height:
        return NOTHING
    ops = view.trace.ops
    calls = calls.filter(
        pl.col("right").list.last() >= least,
        ~pl.col("matmul").cast(pl.String).is_in(_BATCHED),
        ops["forward"].is_null()[calls["op"]],
        (ops["phase"] != "backward").fill_null(value=True)[calls["op"]],
    ).unique("op", keep="first", maintain_order=True)
    return (
        calls.select(
            "op",
            "type",
            rows=pl.col("left").list.first(),
            columns=pl.col("right").list.last(),
            deep=pl.col("left").list.last(),
        )
        .hstack(ops[["thread", "ts", "inputs"]][calls["op"]])
        .sort("ts")
    )


def readers(view: View, heads: pl.DataFrame) -> pl.DataFrame:
    """Return heads with how many positions are ``read``, and by which ``picks``.

    ``read`` is none where an op reads all positions, or nothing picks any. ``beside``
    are kernels of what computes each position alone, as a cast of all logits.
    """
    trace = view.trace
    wide = trace.inputs.select(
        "id", columns=nth("dims", 0).list.last(), numel=first_sizes(trace)
    ).filter(pl.col("columns").is_in(heads["columns"].unique().implode()))
    ops = view.ops.filter(
        pl.col("inputs").is_in(wide["id"].implode()), pl.col("forward").is_null()
    )
    ops = ops[["id", "name", "thread", "ts", "inputs"]].join(
        wide, left_on="inputs", right_on="id"
    )
    after = asof(
        ops.rename({"id": "reader", "inputs": "of"}),
        heads.select("op", "thread", "columns", "rows", begun="ts"),
        "ts",
        "begun",
        by=["thread", "columns"],
    ).filter(
        pl.col("numel") == pl.col("rows") * pl.col("columns"),
        pl.col("reader") != pl.col("op"),
    )
    after = after.with_columns(plain(trace.ops, after["name"]).alias("plain"))
    picks = _counted(view, after)
    work = after.join(
        view.kernels.select(
            kernel="id", reader="op", sent=named_like(view.kernels, _TO_HOST)
        ),
        on="reader",
    )
    alone = named_like(trace.ops, _BY_POSITION)[work["reader"]]
    picking = named(trace.ops, _PICKS)[work["reader"]]
    reads_all = work.filter(~picking & (~alone | pl.col("sent")))["op"]
    beside = work.filter(alone).group_by("op").agg(beside="kernel")
    return (
        heads.join(picks, on="op", how="left", maintain_order="left")
        .join(beside, on="op", how="left", maintain_order="left")
        .with_columns(
            read=pl.when(~pl.col("op").is_in(reads_all.unique().implode())).then("read")
        )
    )


def by_place(view: View, heads: pl.DataFrame) -> Iterator[Row]:
    """Yield the heads of each line with the kernels of their matmuls and gradients.

    ``share`` is what goes of their time, as far as what is read decides it.
    """
    if not heads.height:
        return
    weights = [
        roofline_ns(
            view.gpu,
            assumptions.MATMUL_EFFICIENCY,
            moved=float(columns * deep * SIZES.get(kind, 2)),
        )
        for columns, deep, kind in heads.select("columns", "deep", "type").iter_rows()
    ]
    heads = heads.with_columns(weight=pl.Series(weights, dtype=pl.Float64))
    owners = view.roots(pl.col("id").is_in(heads["op"].implode()))
    kernels = view.owned_kernels(owners).join(
        heads.select("op", "rows", "columns", "read", "beside", "weight"),
        left_on="owner",
        right_on="op",
    )
    # The weight is read as before, however few positions there are.
    stays = pl.max_horizontal(
        pl.col("dur") * pl.col("read") / pl.col("rows"), pl.col("weight")
    )
    saved = pl.col("dur") - pl.min_horizontal("dur", stays)
    groups = view.by_place(
        kernels,
        "rows",
        "columns",
        read=pl.col("read").first(),
        ops=pl.col("owner").unique(maintain_order=True),
        beside=pl.col("beside").explode().drop_nulls().unique(),
        gpu_ns=pl.col("dur").sum(),
        # Kernels of no length, as recorded, save none.
        share=(saved.sum() / pl.col("dur").sum()).fill_nan(0.0),
    )
    yield from groups.iter_rows(named=True)


def _counted(view: View, after: pl.DataFrame) -> pl.DataFrame:
    """Return by head how many positions are picked in all, and the ops that pick."""
    picks = after.filter(named(view.trace.ops, _PICKS)[after["reader"]])
    inputs = view.trace.inputs[["dims", "values"]][picks["of"]]
    rows = picks.hstack(inputs).hstack([_indices(view, picks)])
    counts = pl.Series(
        "read", [picked(row) for row in rows.iter_rows(named=True)], pl.Int64
    )
    rows = rows.hstack([counts])
    # A slice of all of a dimension is what Python makes of ``:``.
    rows = rows.filter(pl.col("read") < pl.col("rows"))
    return rows.group_by("op").agg(pl.col("read").sum(), picks="reader")


def _indices(view: View, picks: pl.DataFrame) -> pl.Series:
    """Return for each index the shapes of its indices, which it makes alike."""
    ops = view.trace.ops
    shaping = ops[["parent", "inputs"]].filter(
        named(ops, ["aten::reshape"]) & ops["parent"].is_in(picks["reader"].implode())
    )
    shapes = shaping.select(
        reader="parent", indices=view.trace.inputs["dims"][shaping["inputs"]].list[0]
    )
    by_op = shapes.group_by("reader", maintain_order=True).agg("indices")
    return picks.join(by_op, on="reader", how="left", maintain_order="left")["indices"]


def picked(row: Row) -> int:
    """Return how many positions an op picks of logits, all of them if it is unknown.

    >>> last = {"plain": "aten::select", "dims": [[2, 16, 50]], "values": ["", "1"]}
    >>> picked(last | {"rows": 32, "indices": None})
    2
    """
    dims, values = row["dims"][0], row["values"] or []
    every, rank = row["rows"], len(dims)
    if row["plain"] == "aten::index":
        indices = row["indices"] or []
        # One for each dimension but that of the vocabulary.
        return prod(indices[0]) if indices and len(indices) == rank - 1 else every
    along = _number(values[1:2])
    if along is None or along % rank == rank - 1:
        return every
    length = dims[along % rank]
    if row["plain"] == "aten::select":
        return every // length
    if row["plain"] == "aten::index_select":
        return every // length * prod(row["dims"][2] or [length])
    start, end, step = (_number(values[at : at + 1]) for at in (2, 3, 4))
    return every // length * len(range(*slice(start, end, step or 1).indices(length)))


def _number(value: list[str]) -> int | None:
    try:
        return int(value[0])
    except (IndexError, ValueError):
        return None
