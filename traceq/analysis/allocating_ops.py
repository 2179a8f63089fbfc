"""Which ops and modules of a trace allocate memory, by line: what snapshots lack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.graph.nesting import nearest

if TYPE_CHECKING:
    from traceq.trace import Trace

_PLACE = ("file", "line", "function")
_CPU = 0
# The profiler tells a block's size, which is up to this much above what was asked for.
_ROUNDED_UP = 2 << 20


def allocating_ops(trace: Trace) -> pl.DataFrame:
    """Return the forward ops that allocate on a GPU: place, ``op``, ``module``, sizes.

    The op is the outermost one, which the line calls. Where the trace has no memory
    events, all ops of a line count, and ``bytes`` is none.
    """
    ops = trace.ops.filter(pl.col("forward").is_null(), pl.col("file").is_not_null())
    taken = trace.memory.filter(
        pl.col("bytes") > 0, pl.col("device_type") != _CPU, pl.col("op").is_not_null()
    )
    if taken.is_empty():
        found = ops.filter(pl.col("parent").is_null()).with_columns(
            bytes=pl.lit(None, pl.Int64)
        )
    else:
        outermost = nearest(trace.ops["parent"], trace.ops["parent"].is_null())
        roots = outermost.gather(taken["op"])
        found = taken.select("bytes", id=roots).join(ops, on="id")
    return (
        found.group_by(*_PLACE, "module", "bytes", op="name")
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
    op: str | None = None,
) -> pl.DataFrame:
    """Return the ``op`` and ``module`` of what a place of a snapshot allocates.

    A snapshot's place is file, line and function. A trace knows the line at which a
    function begins, and may name its file from another folder on. Of the function's
    ops those count that are called so and allocate such a size, as far as any does.
    """
    file, line, function = place
    begins = pl.col("line") <= line
    found = ops.filter(
        begins,
        pl.col("function") == function,
        pl.lit(file).str.ends_with(pl.col("file")) | pl.col("file").str.ends_with(file),
    )
    # A method may be called the same in several classes; the last one is around it.
    found = found.filter(pl.col("line") == pl.col("line").max())
    wanted = [pl.col("bytes").is_between(size, size + _ROUNDED_UP)] if size else []
    wanted += [pl.col("op") == f"aten::{op}"] if op else []
    for fits in wanted:
        closer = found.filter(fits)
        found = closer if closer.height else found
    return found.select("op", "module").unique(maintain_order=True)
