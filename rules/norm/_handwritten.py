"""Handwritten norms over the last dimension, written op by op."""

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
    nth,
    plain,
    rows_where,
)

from ._norms import OF_KERNELS, grouped

if TYPE_CHECKING:
    from traceq.linter import Trace

# Every such norm scales its input by the root of a mean.
_ROOTS = ("aten::rsqrt", "aten::sqrt")
_SCALES = ("aten::mul", "aten::div")
_MEANS = ("aten::mean", "aten::var")
# What comes before the root: ops on the input, ops on the mean.
_ON_INPUT = ("aten::to", "aten::pow", "aten::square", "aten::sub", *_MEANS)
_ON_MEAN = ("aten::add", "aten::add_")
# What comes after it is scaled: a cast, the weight and the bias.
_ON_RESULT = ("aten::to", "aten::type_as")
_ON_WEIGHT = ("aten::mul", "aten::mul_", "aten::add", "aten::add_")
_REACH = list(range(-8, 5))


def handwritten_norms(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return norms written op by op, grouped by place and input.

    A row has ``dims`` and ``type`` of the input, ``steps``, the names of the ops,
    ``shifted``, whether a number is added to the weight, and what ``host_totals``
    and ``grouped`` add.
    """
    if not has_named(trace.ops, _ROOTS) or not has_named(trace.ops, _MEANS):
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
        trace, ran, ("dims", "type", "steps", "shifted"), **ownership.host_totals()
    )


def _norms(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return norms by their root, the ``owner``, with their ``start`` and ``end``.

    A norm is the root, and on both sides of it the longest row of ops that belong to a
    norm, without a gap.
    """
    line = _launching(trace, kernels)
    if not line.height:
        return NOTHING
    roots = _roots(line)
    if not roots.height:
        return NOTHING
    near = (
        roots.with_columns(offset=pl.lit(_REACH, pl.List(pl.Int64)))
        .explode("offset")
        .with_columns(row=pl.col("at") + pl.col("offset"))
        .join(line, on=["thread", "row"])
        .sort("owner", "offset")
    )
    offset, belongs = pl.col("offset"), _belongs()
    # Cumulative minima: true as long as all ops from the root to here belong to it.
    before = (belongs | (offset >= 0)).cum_min(reverse=True).over("owner")
    after = (belongs | (offset <= 1)).cum_min().over("owner")
    return (
        near.filter(before & after)
        .group_by("owner", "thread", "dims", maintain_order=True)
        .agg(
            start=pl.col("ts").min(),
            end=END.max(),
            type=pl.col("type").first(),
            steps=pl.col("plain"),
            shifted=fill_false(_shifts()).any(),
        )
        .filter(pl.col("steps").list.eval(pl.element().is_in(_MEANS)).list.any())
    )


def _launching(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the outermost ops that have work on the GPU, numbered in their order.

    It is only those near a root, in whose order all count.
    """
    ops = trace.ops
    outermost = ownership.outermost_ops(trace)
    nothing = pl.repeat(value=False, n=ops.height, dtype=pl.Boolean, eager=True)
    launching = nothing.scatter(outermost[kernels["op"]].drop_nulls(), values=True)
    launched = rows_where(launching & ~ops["compiling"])
    columns = ["id", "name", "thread", "ts", "dur", "inputs"]
    line = ops[columns][launched].sort("thread", "ts")
    roots = rows_where(named(ops, _ROOTS)[line["id"]]).cast(pl.Int64)
    rows = pl.concat(roots + offset for offset in _REACH).unique().sort()
    rows = rows.filter(rows.is_between(0, line.height - 1))
    line = line[rows]
    given = trace.inputs[["dims", "types"]][line["inputs"]]
    # A cast is a kernel: what a memcpy moves has the same dtype on both sides.
    moved = kernels["op"].filter(kernels["activity"] == "memcpy")
    moves = line["id"].is_in(outermost[moved].drop_nulls().implode())
    return line.select(
        *("id", "thread", "ts", "dur", plain(ops, line["name"])),
        *given.select(
            first=nth("dims", 0), second=nth("dims", 1), type=nth("types", 0)
        ),
        moves.alias("moves"),
        rows.alias("row"),
    )


def _roots(line: pl.DataFrame) -> pl.DataFrame:
    """Return the roots that the next op scales something by, and its ``dims``."""
    after = line.select(
        "thread", row=pl.col("row") - 1, scale="plain", left="first", right="second"
    )
    mean, dims = pl.col("first"), pl.col("dims")
    return (
        line.filter(pl.col("plain").is_in(_ROOTS), mean.list.last() == 1)
        .join(after, on=["thread", "row"])
        .filter(pl.col("scale").is_in(_SCALES))
        .with_columns(
            dims=pl.when(pl.col("right") == mean)
            .then("left")
            .when(pl.col("left") == mean)
            .then("right")
        )
        .filter(
            dims.list.len() == mean.list.len(),
            dims.list.head(dims.list.len() - 1) == mean.list.head(mean.list.len() - 1),
            dims.list.last() > 1,
        )
        .select("thread", "dims", owner="id", at="row", mean="first")
    )


def _shifts() -> pl.Expr:
    """Return whether an op behind a root adds a number to the weight: ``1 + weight``.

    A bias is added to what has the input's shape.
    """
    weight = pl.concat_list(pl.col("dims").list.last())
    number = pl.col("second").list.len().fill_null(0) == 0
    adds = pl.col("plain").is_in(_ON_MEAN) & (pl.col("offset") > 0)
    return adds & (pl.col("first") == weight) & number


def _belongs() -> pl.Expr:
    """Return whether an op near a root is one that a norm is made of."""
    name, first, second = pl.col("plain"), pl.col("first"), pl.col("second")
    dims, weight = pl.col("dims"), pl.concat_list(pl.col("dims").list.last())
    squares = (name == "aten::mul") & (first == dims) & (second == dims)
    before = (
        (name.is_in(_ON_INPUT) & (first == dims))
        | (name.is_in(_ON_MEAN) & (first == pl.col("mean")))
        | (squares & (name.shift(-1).over("owner") == "aten::mean"))
    )
    behind = (name.is_in(_ON_RESULT) & ((first == dims) | (first == weight))) | (
        name.is_in(_ON_WEIGHT) & ((first == weight) | (second == weight))
    )
    made_of = pl.when(pl.col("offset") < 0).then(before).otherwise(behind)
    return fill_false(made_of) & ~pl.col("moves")
