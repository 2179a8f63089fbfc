"""Ops of the trace that made the allocations of the snapshot of the same run.

A snapshot has the line that was running and the requested size; it has no modules, and
no operators where C++ frames were not recorded. A trace has both, but of a function
only the line at which it begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import named
from traceq.common.expressions import known, text
from traceq.common.words import layer_names
from traceq.graph.nesting import nearest
from traceq.model.schema import ID, NUMBER, Column, Table

if TYPE_CHECKING:
    from traceq.model.trace import Trace

_TEXT = pl.String()
_FUNCTION = {
    "file": Column(_TEXT, "The user's file."),
    "line": Column(NUMBER, "The line at which the function begins."),
    "function": Column(_TEXT, "The user's function."),
}

TRACE_OPS = Table(
    "Operators that the user's functions themselves call in the forward, in order.",
    {
        **_FUNCTION,
        "trace_op": Column(_TEXT, "The operator, as aten::linear."),
        "module": Column(_TEXT, "The module around it, as LM_0/Block_1; may be none."),
        "bytes": Column(
            NUMBER,
            "A block that it allocates on the GPU, if any.",
            "bytes",
        ),
        "cast": Column(pl.Boolean(), "Whether the block is for another dtype."),
    },
)

MADE_BY = Table(
    "Operators of the trace that may have made an allocation.",
    {
        "key": Column(ID, "The allocation."),
        "trace_op": TRACE_OPS.columns["trace_op"],
        "module": TRACE_OPS.columns["module"],
        "cast": TRACE_OPS.columns["cast"],
        "fits": Column(pl.Boolean(), "Whether it allocates a block for this size."),
    },
)

MODULES = Table(
    "The module of each allocation of which the trace knows it.",
    {
        "key": Column(ID, "The allocation."),
        "module": Column(_TEXT, "Without the numbers of layers, as LM/Block."),
        "instances": Column(
            pl.List(_TEXT), "Every module that it is, as LM_0/Block_1, in order."
        ),
    },
)

_CPU = 0
_CASTS = ("aten::_to_copy",)
_SEPARATOR = "/"
# The profiler records the size of a block. Small ones are rounded up a little, and of
# large ones the rest is not always split off.
_SMALL = 1 << 20
_ROUND = 512


def trace_ops(trace: Trace) -> pl.DataFrame:
    """Return the operators of a trace by function; ``TRACE_OPS`` has the columns."""
    taken = trace.memory.filter(
        pl.col("bytes") > 0, pl.col("device_type") != _CPU, pl.col("op").is_not_null()
    )
    cast = nearest(trace.ops["parent"], named(trace.ops, _CASTS))[taken["op"]]
    called = _called_by_function(trace)
    blocks = taken.select(
        "bytes",
        id=nearest(trace.ops["parent"], called)[taken["op"]],
        cast=cast.is_not_null(),
    )
    ops = trace.ops.filter(
        called, pl.col("forward").is_null(), pl.col("file").is_not_null()
    )
    kinds = [*_FUNCTION, "name", "module", "bytes", "cast"]
    return TRACE_OPS.shaped(
        ops.join(blocks, on="id", how="left")
        .group_by(kinds)
        .agg(pl.col("id").min())
        .sort("id")
        .rename({"name": "trace_op"})
        .with_columns(known(pl.col("cast")))
    )


def _called_by_function(trace: Trace) -> pl.Series:
    """Return for each op whether its function calls it itself: no op of it does.

    What a compiled region runs is called by the function that was compiled, not by the
    one that the region is in.
    """
    parent = trace.ops["parent"]
    inside = pl.Series([True]).new_from_index(0, len(parent))
    for name in _FUNCTION:
        inside &= trace.ops[name][parent].eq_missing(trace.ops[name])
    return parent.is_null() | ~inside


def in_trace(places: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return places of a snapshot with the function of the trace that each is in.

    Places have a ``key``, ``file``, ``line`` and ``function``, and keep their columns;
    ``trace_file`` and ``begins`` are the function's. A method may have the same name
    in several classes of a file: the last that begins before the line is around it.
    """
    functions = ops.select("function", trace_file="file", begins="line").unique()
    pairs = places.with_columns(text("file"), text("function")).join(
        functions, on="function", maintain_order="left"
    )
    around = pairs.filter(
        pl.col("begins") <= pl.col("line"),
        _same_file(pl.col("file"), pl.col("trace_file")),
    )
    return around.filter(pl.col("begins") == pl.col("begins").max().over("key"))


def made_by(places: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the ops of the trace that may have made allocations; ``MADE_BY``.

    Places are those of ``in_trace`` with ``op`` and ``size``, which may be unknown. Of
    the ops of the function those count that have this name, of these the ones that
    allocate a block for this size, or else any block: as far as there are such.
    """
    candidates = places.join(
        ops,
        left_on=["trace_file", "begins", "function"],
        right_on=["file", "line", "function"],
        maintain_order="left_right",
    ).with_columns(fits=known(_fits(pl.col("size"), pl.col("bytes"))))
    same_name = pl.col("trace_op") == pl.lit("aten::") + text("op")
    for condition in (same_name, pl.col("fits"), pl.col("bytes").is_not_null()):
        holds = known(condition)
        candidates = candidates.filter(holds | ~holds.any().over("key"))
    return MADE_BY.shaped(candidates.unique(list(MADE_BY.columns), maintain_order=True))


def modules(made: pl.DataFrame) -> pl.DataFrame:
    """Return the module of each allocation of ``made_by``; ``MODULES``.

    Where several may have made it, it is the innermost module around them all.
    """
    layers = (
        made.select("key", layer=layer_names(pl.col("module")))
        .unique()
        .with_columns(pl.col("layer").str.split(_SEPARATOR), among=pl.len().over("key"))
        .drop_nulls("layer")
    )
    # Polars 2.0 forgets what a list without rows is of.
    if layers.is_empty():
        return pl.DataFrame(schema=MODULES.dtypes)
    prefixes = layers.with_columns(
        depth=pl.int_ranges(1, pl.col("layer").list.len() + 1)
    ).explode("depth")
    common = (
        prefixes.with_columns(
            module=pl.col("layer").list.head("depth").list.join(_SEPARATOR)
        )
        .group_by("key", "depth", "module", "among")
        .len()
        .filter(pl.col("len") == pl.col("among"))
        .sort("depth")
        .unique("key", keep="last", maintain_order=True)
    )
    if common.is_empty():
        return pl.DataFrame(schema=MODULES.dtypes)
    instance = (
        pl.col("module").str.split(_SEPARATOR).list.head("depth").list.join(_SEPARATOR)
    )
    instances = (
        made.join(common.select("key", "depth"), on="key", maintain_order="left")
        .group_by("key")
        .agg(instances=instance.unique(maintain_order=True))
    )
    return MODULES.shaped(common.join(instances, on="key").sort("key"))


def _fits(size: pl.Expr, block: pl.Expr) -> pl.Expr:
    """Return whether a block may have been split off for such a size."""
    rounded = pl.when(size > _SMALL).then(_SMALL).otherwise(_ROUND)
    return (block >= size) & (block < size + rounded)


def _same_file(file: pl.Expr, other: pl.Expr) -> pl.Expr:
    """Return whether two paths are one file, named from different folders on."""
    slash = pl.lit(_SEPARATOR)
    return (slash + file).str.ends_with(slash + other) | (slash + other).str.ends_with(
        slash + file
    )
