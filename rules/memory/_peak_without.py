"""Peak memory with some of the allocations removed."""

from __future__ import annotations

import polars as pl


def peak_savings(curve: pl.DataFrame, removed: pl.DataFrame) -> int:
    """Return the reduction of one device's peak without these allocations.

    They have ``size``, ``alloc`` and ``free``. Without them, another moment may be the
    peak; less than their size is saved then.
    """
    from_start = int(removed.filter(pl.col("alloc").is_null())["size"].sum())
    changes = (
        pl.concat(
            [
                removed.select(event="alloc", less="size"),
                removed.select(event="free", less=-pl.col("size")),
            ]
        )
        .drop_nulls("event")
        .group_by("event")
        .agg(pl.sum("less"))
    )
    rest = (
        curve.join(changes, on="event", how="left", maintain_order="left")
        .select(
            "allocated",
            without=pl.col("allocated")
            - pl.col("less").fill_null(0).cum_sum()
            - from_start,
        )
        .max()
    )
    return int(rest["allocated"].sum()) - int(rest["without"].sum())
