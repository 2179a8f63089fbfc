"""Live memory of each category over time."""

from __future__ import annotations

import polars as pl

from traceq.analysis.memory.categories import CATEGORIES
from traceq.model.schema import ID, NUMBER, Column, Table

CATEGORY_CURVES = Table(
    "What was live of a category after each event that changed it.",
    {
        "device": Column(NUMBER, "The GPU's ordinal."),
        "category": Column(pl.Enum(CATEGORIES), "The category."),
        "event": Column(ID, "The event; none before the first.", "events.id"),
        "size": Column(NUMBER, "What was live after it.", "bytes"),
    },
)

TIMELINE = Table(
    "What was live of each category at chosen moments.",
    {
        "event": Column(ID, "The event; none before the first.", "events.id"),
        "category": Column(pl.Enum(CATEGORIES), "The category."),
        "size": Column(NUMBER, "What was live after it.", "bytes"),
    },
)


def category_curves(allocations: pl.DataFrame) -> pl.DataFrame:
    """Return the live bytes of each category; ``CATEGORY_CURVES`` has the columns."""
    row = ("device", "category")
    changes = pl.concat(
        [
            allocations.select(*row, "size", event="alloc"),
            allocations.filter(pl.col("free").is_not_null()).select(
                *row, -pl.col("size"), event="free"
            ),
        ]
    )
    return CATEGORY_CURVES.shaped(
        changes.group_by(*row, "event")
        .agg(pl.sum("size"))
        .sort(*row, "event", nulls_last=False)
        .with_columns(pl.col("size").cum_sum().over(row))
    )


def category_peaks(curves: pl.DataFrame) -> pl.DataFrame:
    """Return the peak of the live bytes of each category."""
    return curves.group_by("device", "category").agg(pl.max("size")).sort(pl.all())


def highest_moments(curve: pl.DataFrame, count: int) -> pl.DataFrame:
    """Cut the curve of a device into ``count`` parts and return each one's highest row.

    The parts take the same time, or have as many events if there are no times.
    ``from`` and ``to`` are where in the whole each begins and ends, from 0 to 1.
    """
    rows = curve.with_row_index("row")
    at = pl.col("ts").cast(pl.Float64).fill_null(0.0)
    if curve["ts"].null_count() >= curve.height - 1:
        at = pl.col("row").cast(pl.Float64)
    rows = rows.with_columns(at=(at / pl.max_horizontal(at.max(), 1.0)))
    part = (pl.col("at") * count).floor().clip(upper_bound=count - 1).cast(pl.Int64)
    highest = (
        rows.with_columns(part=part)
        .sort("allocated", "row", descending=[True, False])
        .unique("part", keep="first", maintain_order=True)
    )
    last = rows.with_columns(part=part).group_by("part").agg(last=pl.max("row"))
    parts = pl.DataFrame({"part": range(count)}, schema={"part": pl.Int64})
    # Where nothing happens, it stays as it was after the last event.
    filled = (
        parts.join(highest.select("part", "row"), on="part", how="left")
        .join(last, on="part", how="left")
        .sort("part")
        .with_columns(before=pl.col("last").shift(1).forward_fill())
        .select("part", row=pl.coalesce("row", "before"))
    )
    return (
        filled.join(rows.drop("at"), on="row", how="left")
        .sort("part")
        .with_columns(
            **{"from": pl.col("part") / count, "to": (pl.col("part") + 1) / count}
        )
        .drop("part", "row")
    )


def timeline(curves: pl.DataFrame, events: pl.Series) -> pl.DataFrame:
    """Return each category after each of some events; ``TIMELINE`` has the columns.

    ``curves`` are those of one device.
    """
    before_all = pl.col("event").cast(NUMBER).fill_null(-1)
    moments = events.to_frame("event").select(before_all).unique().sort("event")
    parts = [pl.DataFrame(schema=TIMELINE.dtypes)]
    for (category,), part in curves.group_by("category"):
        sizes = part.select(before_all, "size")
        values = moments.join_asof(sizes.sort("event"), on="event").select(
            pl.when(pl.col("event") >= 0).then("event").alias("event"),
            pl.lit(category).alias("category"),
            pl.col("size").fill_null(0),
        )
        parts.append(TIMELINE.shaped(values))
    return pl.concat(parts)
