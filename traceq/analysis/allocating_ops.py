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
    ops: pl.DataFrame, file: str, line: int, function: str, size: int | None
) -> pl.DataFrame:
    """Return the ``op`` and ``module`` of a line, of those that allocate such a size.

    Traces and snapshots may name a file from different folders on.
    """
    here = ops.filter(
        pl.col("line") == line,
        pl.col("function") == function,
        pl.lit(file).str.ends_with(pl.col("file")) | pl.col("file").str.ends_with(file),
    )
    if size is not None:
        fits = here.filter(pl.col("bytes").is_between(size, size + _ROUNDED_UP))
        here = fits if fits.height else here
    return here.select("op", "module").unique(maintain_order=True)
