"""Memory leaks: allocations that every step makes and never frees, by line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.memory.stacks import SOURCE
from traceq.model.schema import ID, NUMBER, Column, Table

if TYPE_CHECKING:
    from traceq.analysis.memory.history import History

LEAKS = Table(
    "Stacks that leak: each step leaves allocations that are never freed.",
    {
        "device": Column(NUMBER, "The GPU's ordinal."),
        "stack": Column(ID, "Where it was allocated.", "stacks.id"),
        **SOURCE,
        "per_step": Column(NUMBER, "What a step leaks, on average.", "bytes"),
        "leaked": Column(NUMBER, "What all steps of the history leaked.", "bytes"),
        "count": Column(NUMBER, "In how many allocations."),
        "steps": Column(NUMBER, "In how many steps."),
    },
)

_FEWEST_STEPS = 2
# A part of what is live at the end may be what the last step has not freed yet.
_SHARE_OF_GROWTH = 0.5


def memory_leaks(history: History) -> pl.DataFrame:
    """Return the leaks, largest first; ``LEAKS`` has the columns.

    A stack leaks if it leaves allocations in at least half of the steps, and the lowest
    point of the curve rises by as much from step to step. What the next step frees, as
    batches that are loaded ahead, is not a leak.
    """
    left = history.allocations.filter(
        pl.col("alloc").is_not_null(),
        pl.col("free").is_null(),
        pl.col("step").is_not_null(),
    )
    leaks = (
        left.group_by("device", "stack")
        .agg(
            pl.col(list(SOURCE)).first(),
            leaked=pl.col("size").sum(),
            count=pl.len(),
            steps=pl.col("step").n_unique(),
        )
        .filter(pl.col("steps") >= _FEWEST_STEPS, 2 * pl.col("steps") >= history.steps)
        .with_columns(per_step=pl.col("leaked") // pl.col("steps"))
    )
    growing = (
        leaks.group_by("device")
        .agg(pl.col("per_step").sum())
        .join(_growth(history), on="device")
        .filter(pl.col("growth") >= _SHARE_OF_GROWTH * pl.col("per_step"))
    )
    return LEAKS.shaped(
        leaks.join(growing, on="device", how="semi").sort(
            "per_step", "device", "stack", descending=[True, False, False]
        )
    )


def _growth(history: History) -> pl.DataFrame:
    """Return the increase of each step's lowest point over the step before."""
    steps = history.steps_of_curve.group_by("device", maintain_order=True)
    return steps.agg(growth=pl.col("lowest").diff().min())
