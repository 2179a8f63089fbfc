"""Causes of rare slow steps, from what was counted while they ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from msgspec import structs

from traceq.model.schema import NS, NUMBER, Column, Table
from traceq.model.slow_steps import SlowCause, SlowSteps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.model.slow_steps import SlowRun

STEPS = Table(
    "Slow steps of all ranks, each with its cause.",
    {
        "rank": Column(NUMBER, "The rank."),
        "step": Column(NUMBER, "Number of the step."),
        "ns": Column(NS, "How long it took.", "ns"),
        "lost": Column(NS, "The part of that above the median.", "ns"),
        "cause": Column(pl.String(), "What made it slow; unknown if nothing shows it."),
        "file": Column(pl.String(), "The program's line that it was seen at."),
        "line": Column(NUMBER, "The same."),
        "function": Column(pl.String(), "The same."),
    },
)

# Heuristic thresholds: the share of the lost time that a cause has to explain ...
_EXPLAINS = 0.5
# ... and the share of the highest clock below which the GPU has slowed down.
_SLOW_CLOCK = 0.9
LATE_RANK = "another rank is late"
_OWN = ("waiting in the program", "the program's own code", "unknown")


def slow_step_rows(runs: Mapping[int, SlowRun]) -> pl.DataFrame:
    """Return the slow steps of all ranks; ``STEPS`` has the columns."""
    rows = [
        {
            "rank": rank,
            **structs.asdict(step),
            "evaluation": "evaluation" in step.marks,
            "first_batch": "first batch" in step.marks,
            "file": step.line.file if step.line else None,
            "at": step.line.line if step.line else None,
            "function": step.line.function if step.line else None,
        }
        for rank, run in runs.items()
        for step in run.listed
    ]
    if not rows:
        return pl.DataFrame(schema=STEPS.dtypes)
    table = pl.DataFrame(rows, infer_schema_length=None).drop("line", "marks")
    lost = pl.max_horizontal(pl.col("ns") - pl.col("median_ns"), 0)
    table = table.with_columns(lost=lost).with_columns(cause=_cause())
    # Who has no reason of its own while another rank has one waits for that rank.
    own = pl.col("cause").is_in(_OWN)
    elsewhere = (~own).any().over("step")
    named = pl.when(own & elsewhere).then(pl.lit(LATE_RANK)).otherwise("cause")
    return STEPS.shaped(table.with_columns(named.alias("cause")).rename({"at": "line"}))


def _cause() -> pl.Expr:
    """Return the first cause that holds; what is counted comes before what is timed."""
    col = pl.col

    def explains(spent: str) -> pl.Expr:
        return col(spent) >= _EXPLAINS * col("lost")

    slowed = col("clock") < _SLOW_CLOCK * col("highest_clock")
    waits = col("cpu_ns") - col("median_ns") < _EXPLAINS * col("lost")
    # The program waits for a thread of its own, as one of a loop in OpenMP.
    starved = waits & (col("watched_ns") > 0)
    starved &= col("others_queued_ns") >= _EXPLAINS * col("watched_ns")
    cases = (
        ("Python's garbage collector", explains("gc_ns")),
        ("checkpointing", explains("checkpoint_ns")),
        ("recompilation", col("compiles") > 0),
        ("other processes on the CPU", explains("queued_ns")),
        ("evaluation", col("evaluation")),
        ("first batch of an epoch", explains("data_ns") & col("first_batch")),
        ("DataLoader", explains("data_ns")),
        ("allocator retries", col("alloc_retries") > 0),
        ("cudaMalloc", col("cuda_mallocs") > 0),
        ("lower GPU clock", slowed.fill_null(value=False)),
        ("other processes on the CPU", starved),
        (_OWN[0], col("file").is_not_null() & waits),
        (_OWN[1], col("file").is_not_null()),
    )
    cause: pl.Expr = pl.lit(_OWN[2])
    for name, holds in reversed(cases):
        cause = pl.when(holds).then(pl.lit(name)).otherwise(cause)
    return cause


def slow_steps(runs: Mapping[int, SlowRun]) -> SlowSteps | None:
    """Return the slow steps of a run by cause; none if no rank was watched."""
    if not runs:
        return None
    every = list(runs.values())
    steps = sum(run.steps for run in every)
    of_line = pl.col("cause").is_in(_OWN)
    place = [
        pl.when(of_line).then(name).alias(name) for name in ("file", "line", "function")
    ]
    groups = (
        slow_step_rows(runs)
        .with_columns(place)
        .group_by("cause", "file", "line", "function")
        .agg(
            count=pl.len(),
            lost=pl.sum("lost"),
            longest=pl.max("ns"),
            ranks=pl.col("rank").unique().sort(),
        )
        .sort(-pl.col("lost"), "cause", "file", "line")
    )
    return SlowSteps(
        factor=every[0].factor,
        steps=steps,
        slow=sum(run.slow for run in every),
        median_ns=max(run.median_ns for run in every),
        causes=tuple(
            SlowCause(
                cause=row["cause"],
                count=row["count"],
                every=round(steps / row["count"]),
                lost_ns=row["lost"],
                per_step_ns=round(row["lost"] / steps),
                longest_ns=row["longest"],
                file=row["file"],
                line=row["line"],
                function=row["function"],
                ranks=tuple(row["ranks"]),
            )
            for row in groups.iter_rows(named=True)
        ),
    )
