"""16-bit copies of 32-bit weights that live beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.common.expressions import text
from traceq.model.schema import NUMBER

if TYPE_CHECKING:
    from traceq.model.snapshot import Snapshot

_CASTS = r"^at::(autocast::cached_cast|_ops::(_to_copy|to_dtype|to_dtype_layout)::call)"
_KEY = ["device", "size"]


def casting_stacks(snapshot: Snapshot) -> pl.Series:
    """Return the stacks whose C++ frames change a dtype."""
    frames = snapshot.frames.filter(text("function").str.contains(_CASTS))
    stacks = snapshot.stacks.select("frames", stack="id").explode("frames")
    return stacks.join(frames, left_on="frames", right_on="id", how="semi")["stack"]


def weight_copies(live: pl.DataFrame, casts: pl.DataFrame) -> pl.DataFrame:
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
        casts.join(weights, on=_KEY)
        .sort("device", "alloc")
        .filter(pl.int_range(pl.len(), dtype=NUMBER).over(_KEY) < pl.col("weights"))
    )
