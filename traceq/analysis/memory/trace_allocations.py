"""Which ops and modules of a trace allocate memory, by line: what snapshots lack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import named, outermost_ops
from traceq.graph.nesting import nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.trace import Trace

_PLACE = ("file", "line", "function")
_CPU = 0
_CASTS = ("aten::_to_copy",)
# The profiler tells the size of a block. Small ones are rounded up a little, and from
# large ones what is left is not always cut off.
_SMALL = 1 << 20
_ROUND = 512


def allocating_ops(trace: Trace) -> pl.DataFrame:
    """Return the forward ops that allocate on a GPU: place, ``op``, ``module``, sizes.

    The op is the outermost one, which the line calls; ``cast`` is whether it was to
    change a number format. Where the trace has no memory events, all ops of a line
    count, and ``bytes`` is none.
    """
    ops = trace.ops.filter(pl.col("forward").is_null(), pl.col("file").is_not_null())
    taken = trace.memory.filter(
        pl.col("bytes") > 0, pl.col("device_type") != _CPU, pl.col("op").is_not_null()
    )
    if taken.is_empty():
        found = ops.filter(pl.col("parent").is_null()).with_columns(
            bytes=pl.lit(None, pl.Int64), cast=pl.lit(value=False)
        )
    else:
        outermost = outermost_ops(trace)
        roots = outermost.gather(taken["op"])
        cast = (
            nearest(trace.ops["parent"], named(trace.ops, _CASTS))
            .gather(taken["op"])
            .is_not_null()
        )
        found = taken.select("bytes", id=roots, cast=cast).join(ops, on="id")
    return (
        found.group_by(*_PLACE, "module", "bytes", "cast", op="name")
        .agg(first=pl.col("id").min())
        .sort("first")
        .with_columns(pl.col(*_PLACE, "module", "op").cast(pl.String))
        .with_columns(pl.col("line").cast(pl.Int64))
        .drop("first")
    )


def ops_at(
    ops: pl.DataFrame,
    place: tuple[str, int, str],
    size: int | None = None,
    names: Sequence[str] = (),
) -> pl.DataFrame:
    """Return the ``op`` and ``module`` of what a place of a snapshot allocates.

    A snapshot's place is file, line and function. A trace knows the line at which a
    function begins, and may name its file from another folder on. Of the function's
    ops those count that are called so and allocate such a size, as far as any does.
    """
    file, line, function = place
    found = ops.filter(
        pl.col("line") <= line,
        pl.col("function") == function,
        same_file(pl.lit(file), pl.col("file")),
    )
    # A method may be called the same in several classes; the last one is around it.
    found = found.filter(pl.col("line") == pl.col("line").max())
    wanted = [fits(pl.lit(size), pl.col("bytes"))] if size else []
    wanted += [pl.col("op").is_in(names)] if names else []
    for condition in wanted:
        closer = found.filter(condition)
        found = closer if closer.height else found
    return found.select("op", "module").unique(maintain_order=True)


def fits(size: pl.Expr, block: pl.Expr) -> pl.Expr:
    """Return whether a block may be what was cut out for such a size."""
    rounded = pl.when(size > _SMALL).then(_SMALL).otherwise(_ROUND)
    return (block >= size) & (block < size + rounded)


def same_file(file: pl.Expr, other: pl.Expr) -> pl.Expr:
    """Return whether two files are the same, named from different folders on."""
    return file.str.ends_with(other) | other.str.ends_with(file)
