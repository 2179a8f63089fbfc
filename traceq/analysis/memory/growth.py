"""What each step of a memory snapshot leaves behind, and which line made it."""

from __future__ import annotations

import polars as pl

from traceq.analysis.memory.stacks import SOURCE
from traceq.model.schema import ID, NUMBER, Column, Table

GROWTH = Table(
    "Stacks of which each step leaves something that no later step gives back.",
    {
        "device": Column(NUMBER, "The GPU's ordinal."),
        "stack": Column(ID, "Where it was allocated.", "stacks.id"),
        **SOURCE,
        "grown": Column(NUMBER, "What one step leaves, on average.", "bytes"),
        "left": Column(NUMBER, "What all steps of the history left.", "bytes"),
        "count": Column(NUMBER, "How many allocations that were."),
        "steps": Column(NUMBER, "In how many steps."),
    },
)

_LEAST_STEPS = 2
# A part of what is left may be what the last step has not given back yet.
_REAL = 0.5


def memory_growth(
    allocations: pl.DataFrame, curve: pl.DataFrame, phases: pl.DataFrame
) -> pl.DataFrame:
    """Return what steps leave behind, the most first; ``GROWTH`` has the columns.

    Something is left behind if the same stack leaves it in at least half of the steps,
    and what is allocated when the least is grows by as much: what the next step gives
    back, as batches that are loaded ahead, is not.
    """
    steps = phases["step"].drop_nulls().n_unique()
    left = allocations.filter(
        pl.col("alloc").is_not_null(),
        pl.col("free").is_null(),
        pl.col("step").is_not_null(),
    )
    found = (
        left.group_by("device", "stack")
        .agg(
            pl.col(list(SOURCE)).first(),
            left=pl.col("size").sum(),
            count=pl.len(),
            steps=pl.col("step").n_unique(),
        )
        .filter(
            pl.col("steps") >= _LEAST_STEPS,
            2 * pl.col("steps") >= steps,
        )
        .with_columns(grown=pl.col("left") // pl.col("steps"))
    )
    real = found.group_by("device").agg(pl.col("grown").sum())
    real = real.join(_troughs(curve, phases), on="device").filter(
        pl.col("trough") >= _REAL * pl.col("grown")
    )
    return GROWTH.shaped(
        found.join(real, on="device", how="semi").sort(
            "grown", "device", "stack", descending=[True, False, False]
        )
    )


def _troughs(curve: pl.DataFrame, phases: pl.DataFrame) -> pl.DataFrame:
    """Return by how much the least that is allocated grows from step to step."""
    lowest = (
        curve.join(phases.select("event", "step").drop_nulls(), on="event")
        .group_by("device", "step")
        .agg(pl.col("allocated").min())
        .sort("device", "step")
    )
    return lowest.group_by("device").agg(trough=pl.col("allocated").diff().min())
