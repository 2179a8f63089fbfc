"""Copies of weights in 16 bits that live beside the weights in 32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.memory.trace_allocations import fits, same_file
from traceq.model.schema import NUMBER

if TYPE_CHECKING:
    from traceq.model.snapshot import Snapshot

_CASTS = r"^at::(autocast::cached_cast|_ops::(_to_copy|to_dtype|to_dtype_layout)::call)"
_KEY = ["device", "size"]


def casts(
    snapshot: Snapshot, allocations: pl.DataFrame, ops: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Return the allocations that a change of the number format made.

    Stacks with C++ frames say so. Of those without, ``ops`` may say it, which is what
    ``allocating_ops`` says of the program's trace: by function and size.
    """
    frames = snapshot.frames.filter(
        pl.col("function").cast(pl.String).str.contains(_CASTS)
    )
    stacks = snapshot.stacks.select("frames", stack="id").explode("frames")
    mine = stacks.join(frames, left_on="frames", right_on="id", how="semi")["stack"]
    made = pl.col("stack").is_in(mine.implode())
    if ops is not None:
        made |= pl.col("op").is_null() & pl.col("alloc").is_in(
            _by_trace(allocations, ops).implode()
        )
    return allocations.filter(pl.col("alloc").is_not_null(), made)


def _by_trace(allocations: pl.DataFrame, ops: pl.DataFrame) -> pl.Series:
    """Return the allocations of which the trace has a cast of their size."""
    cast = ops.filter("cast").select(
        "function", "bytes", begins="line", cast_file="file"
    )
    text = pl.col("file", "function").cast(pl.String)
    found = (
        allocations.select("alloc", "size", "line", text)
        .drop_nulls()
        .join(cast.unique(), on="function")
        .filter(
            pl.col("line") >= pl.col("begins"),
            fits(pl.col("size"), pl.col("bytes")),
            same_file(pl.col("file"), pl.col("cast_file")),
        )
    )
    return found["alloc"].unique()


def weight_copies(live: pl.DataFrame, cast: pl.DataFrame) -> pl.DataFrame:
    """Return casts that are half as large as a weight that lives with them.

    There are no more copies of a size than weights; ``copies_of`` is the weight's size.
    """
    weights = (
        live.filter(pl.col("category") == "weights")
        .group_by("device", copies_of="size")
        .agg(weights=pl.len())
        .with_columns(size=pl.col("copies_of") // 2)
        .filter(pl.col("size") * 2 == pl.col("copies_of"))
    )
    return (
        cast.join(weights, on=_KEY)
        .sort("device", "alloc")
        .filter(pl.int_range(pl.len(), dtype=NUMBER).over(_KEY) < pl.col("weights"))
    )
