"""Experts: how evenly all-to-alls of unequal sizes spread tokens over the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from traceq.ranks.job import Job


@dataclass(frozen=True, eq=False)
class Experts:
    """Tokens that ranks receive in all-to-alls with recorded split sizes."""

    layers: pl.DataFrame
    """By ``place`` in the step: ``module``, ``balancedness`` (mean ÷ max over ranks, at
    the median of the steps), ``worst`` and ``rank``, which mostly receives most."""
    tokens: pl.DataFrame
    """By ``rank``: ``tokens``, what it receives of all that is received."""


def experts(job: Job) -> Experts | None:
    """Return the balance of the experts; none where no split sizes were recorded."""
    sent = job.cells.filter(
        pl.col("kind") == "all_to_all",
        (pl.col("splits_out").list.len() > 0).fill_null(value=False),
    ).with_columns(tokens=pl.col("splits_out").list.sum())
    if not sent.height:
        return None
    by_instance = (
        sent.group_by("instance")
        .agg(
            pl.col("module").mode().sort().first(),
            balancedness=pl.col("tokens").mean() / pl.col("tokens").max(),
            rank=pl.col("rank").sort_by("tokens").last(),
        )
        .join(job.collectives.select("instance", "place", "last"), on="instance")
    )
    layers = (
        by_instance.sort("last")
        .group_by("place", maintain_order=True)
        .agg(
            pl.col("module").first(),
            pl.col("balancedness").median(),
            worst=pl.col("balancedness").min(),
            rank=pl.col("rank").mode().sort().first(),
        )
    )
    tokens = (
        sent.group_by("rank")
        .agg(pl.col("tokens").sum())
        .with_columns(pl.col("tokens") / pl.col("tokens").sum())
        .sort("rank")
    )
    return Experts(layers, tokens)
