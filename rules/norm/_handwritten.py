"""Handwritten norms over one dimension, written op by op."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import ownership
from traceq.linter import (
    END,
    NOTHING,
    fill_false,
    has_named,
    named,
    named_like,
    nth,
    plain,
    rows_where,
)

from ._norm_shapes import LENGTHS, MEANS, ROOTS, Norm, Op, norm_around
from ._norms import OF_KERNELS, grouped

if TYPE_CHECKING:
    from traceq.linter import Trace

_ADDS = ("aten::add", "aten::add_")
_LOOKED_AT = ("plain", "inputs", "moves", "offset")
_SHAPE = {
    "from": pl.Int64(),
    "to": pl.Int64(),
    "dims": pl.List(pl.Int64()),
    "axis": pl.Int64(),
    "shifted": pl.Boolean(),
}
# How far a norm reaches from its root.
_REACH = list(range(-8, 8))


def handwritten_norms(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return norms written op by op, grouped by place and input.

    A row has ``dims`` and ``type`` of the input, ``axis``, the dim that the norm is
    over, ``steps``, the names of the ops, ``shifted``, whether a number is added to
    the weight, and what ``host_totals`` and ``grouped`` add.
    """
    by_mean = has_named(trace.ops, ROOTS) and has_named(trace.ops, MEANS)
    if not by_mean and not has_named(trace.ops, LENGTHS):
        return NOTHING
    norms = _norms(trace, kernels)
    if not norms.height:
        return NOTHING
    owners = ownership.during(trace, norms.select("owner", "thread", "start", "end"))
    host = norms.drop("thread", "start", "end").join(
        ownership.host_work(trace, owners), on="owner"
    )
    ran = ownership.owned(trace, kernels[[*OF_KERNELS]], owners).join(host, on="owner")
    return grouped(
        trace,
        ran,
        ("dims", "axis", "type", "steps", "shifted"),
        **ownership.host_totals(),
    )


def _norms(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return norms by their root, the ``owner``, with their ``start`` and ``end``."""
    line = _launching(trace, kernels)
    if not line.height:
        return NOTHING
    roots = line.filter(pl.col("plain").is_in([*ROOTS, *LENGTHS]))
    near = (
        roots.select("thread", owner="id", at="row")
        .with_columns(offset=pl.lit(_REACH, pl.List(pl.Int64)))
        .explode("offset")
        .with_columns(row=pl.col("at") + pl.col("offset"))
        .join(line, on=["thread", "row"])
        .sort("owner", "offset")
    )
    rows = near.group_by("owner", maintain_order=True).agg(_LOOKED_AT)
    reached = _reached(trace, rows)
    if not reached.height:
        return NOTHING
    offset = pl.col("offset")
    return (
        near.join(reached, on="owner")
        .filter(offset.is_between(pl.col("from"), pl.col("to")))
        .sort("owner", "offset")
        .group_by("owner", "thread", "dims", "axis", maintain_order=True)
        .agg(
            start=pl.col("ts").min(),
            end=END.max(),
            type=pl.col("type").first(),
            steps=pl.col("plain"),
            shifted=pl.col("shifted").first(),
        )
    )


def _reached(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the norms of roots: ``from`` and ``to``, as offsets, and _SHAPE.

    What is around a root is the same in every layer and step, and is looked at once.
    """
    distinct = rows.select(_LOOKED_AT).unique(maintain_order=True)
    ids = distinct["inputs"].explode().drop_nulls().unique()
    dims_and_values = trace.inputs[["dims", "values"]][ids].rows()
    inputs = dict(zip(ids.to_list(), dims_and_values, strict=True))
    reached = []
    for names, numbers, moves, offsets in distinct.iter_rows():
        ops = [
            _op(name, *inputs.get(number, (None, None)), moves=moved)
            for name, number, moved in zip(names, numbers, moves, strict=True)
        ]
        norm = norm_around(ops, offsets.index(0))
        reached.append(
            (
                offsets[norm.first],
                offsets[norm.last],
                norm.dims,
                norm.axis,
                _shifts_weight(ops[offsets.index(0) : norm.last + 1], norm),
            )
            if norm
            else (None,) * len(_SHAPE)
        )
    shapes = pl.DataFrame(reached, schema=_SHAPE, orient="row")
    described = pl.concat([distinct, shapes], how="horizontal").drop_nulls("dims")
    return rows.join(described, on=_LOOKED_AT, nulls_equal=True).select(
        "owner", *_SHAPE
    )


def _shifts_weight(ops: list[Op], norm: Norm) -> bool:
    """Return whether an op behind the root adds a number to the weight: 1 + weight.

    A bias is added to what has the input's shape.
    """
    weight = [norm.dims[norm.axis]]
    return any(op.name in _ADDS and op.first == weight and not op.second for op in ops)


def _op(
    name: str,
    dims: list[list[int]] | None,
    values: list[str] | None,
    *,
    moves: bool,
) -> Op:
    shapes: list[list[int] | None] = [*(dims or []), None, None]
    first, second = shapes[:2]
    value = values[1] if values and len(values) > 1 else None
    return Op(name, first, second, moves, value)


def _launching(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the outermost ops that have work on the GPU, numbered in their order.

    It is only those near a root, in whose order all count.
    """
    ops = trace.ops
    outermost = _outermost(trace)
    nothing = pl.repeat(value=False, n=ops.height, dtype=pl.Boolean, eager=True)
    launching = nothing.scatter(outermost[kernels["op"]].drop_nulls(), values=True)
    launched = rows_where(launching & ~ops["compiling"])
    columns = ["id", "name", "thread", "ts", "dur", "inputs"]
    line = ops[columns][launched].sort("thread", "ts")
    roots = rows_where(named(ops, (*ROOTS, *LENGTHS))[line["id"]]).cast(pl.Int64)
    if not len(roots):
        return NOTHING
    rows = pl.concat(roots + offset for offset in _REACH).unique().sort()
    rows = rows.filter(rows.is_between(0, line.height - 1))
    line = line[rows]
    # A cast is a kernel: what a memcpy moves has the same dtype on both sides.
    moved = kernels["op"].filter(kernels["activity"] == "memcpy")
    moves = line["id"].is_in(outermost[moved].drop_nulls().implode())
    return line.select(
        *("id", "thread", "ts", "dur", "inputs", plain(ops, line["name"])),
        *trace.inputs[["types"]][line["inputs"]].select(type=nth("types", 0)),
        moves.alias("moves"),
        rows.alias("row"),
    )


def _outermost(trace: Trace) -> pl.Series:
    """Return for each op the outermost op of torch around it, or itself.

    A function of autograd that the program has is around the ops that it calls.
    """
    ops, outermost = trace.ops, ownership.outermost_ops(trace)
    of_torch = named_like(ops, "^aten::") & ~fill_false(ops["phase"] == "backward")
    within = ops["parent"].is_not_null() & of_torch
    around = outermost.filter(within)
    if fill_false(of_torch[around]).all():
        return outermost
    rows = rows_where(of_torch)
    nested = ownership.inside(trace, rows)[ops["parent"][rows]].is_not_null()
    own = ownership.inside(trace, rows.filter(~nested))
    return own.zip_with(own.is_not_null(), outermost)
