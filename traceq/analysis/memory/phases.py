"""Step and phase of each event of a memory snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.model.names import describe_regions
from traceq.model.schema import ID, NUMBER, PHASES, Column, Table

if TYPE_CHECKING:
    from traceq.model.snapshot import Snapshot

EVENT_PHASES = Table(
    "The step and the phase of each event.",
    {
        "event": Column(ID, "The event.", "events.id"),
        "phase": Column(pl.Enum(PHASES), "Part of the step; none if nothing shows it."),
        "stretch": Column(
            NUMBER, "Number of the unbroken stretch of one phase, from 0."
        ),
        "step": Column(
            NUMBER,
            "As in ProfilerStep#N; else counted from 0, a step ends with its optimizer,"
            " or its backward if there is none. None if nothing shows it.",
        ),
    },
)

_PHASE = pl.Enum(PHASES)
# Where phases lie inside each other, the one that is named first counts.
_INNER_FIRST = ("optimizer", "backward", "forward", "data")
_PASSES = ("forward", "backward", "optimizer")
_FREES = ("free_requested", "free_completed")


def event_phases(snapshot: Snapshot, sources: pl.DataFrame) -> pl.DataFrame:
    """Return the step and phase of each event; ``EVENT_PHASES`` has the columns.

    The stack decides first, then the regions around it. An event with neither belongs
    to the phase before it. Where stacks have Python frames only, an allocation without
    a stack was made on a thread of autograd, which runs no Python.
    """
    marks = _marks(snapshot)
    # A free may have the stack of its allocation, which another phase made.
    allocates = ~pl.col("action").is_in(_FREES)
    rows = (
        snapshot.events.select("device", "ts", "stack", "action", event="id")
        .with_columns(stack=pl.when(allocates).then("stack"))
        .join(_by_stack(sources), on="stack", how="left", maintain_order="left")
        .with_columns(by_stack=_by_stack_or_none(snapshot))
        .with_columns(region=_region(snapshot.events["ts"], marks))
        .with_columns(
            shown=pl.coalesce("by_stack", "region", _also_forward()).cast(_PHASE)
        )
    )
    passes = pl.when(pl.col("shown").is_in(_PASSES)).then("shown")
    rows = rows.with_columns(running=passes.forward_fill().over("device"))
    before = pl.col("running").shift(1).over("device")
    changed = pl.col("running").ne_missing(before)
    rows = rows.with_columns(
        phase=pl.coalesce("shown", "running"),
        stretch=changed.cast(NUMBER).cum_sum().over("device"),
    )
    return EVENT_PHASES.shaped(rows.with_columns(step=_steps(rows, marks)))


def _by_stack(sources: pl.DataFrame) -> pl.DataFrame:
    phase = (
        pl.when("optimizer")
        .then(pl.lit("optimizer"))
        .when("backward")
        .then(pl.lit("backward"))
    )
    return sources.select("stack", "forward", by_stack=phase)


def _by_stack_or_none(snapshot: Snapshot) -> pl.Expr:
    in_python = pl.col("line") > 0
    if snapshot.frames.is_empty() or not snapshot.frames.select(in_python.all()).item():
        return pl.col("by_stack")
    alone = pl.col("stack").is_null() & (pl.col("action") == "alloc")
    return pl.when(alone).then(pl.lit("backward")).otherwise("by_stack")


def _also_forward() -> pl.Expr:
    return pl.when("forward").then(pl.lit("forward"))


def _marks(snapshot: Snapshot) -> pl.DataFrame:
    """Return the starts and ends of regions that are a phase or a step, by time."""
    names = snapshot.annotations["name"].cast(pl.String)
    described = describe_regions(names.unique())
    return (
        snapshot.annotations.select("ts", "stage", name=names)
        .join(described, on="name", how="left", maintain_order="left")
        .filter(pl.col("ts").is_not_null())
        .sort("ts", maintain_order=True)
        .select(
            "ts",
            "step",
            pl.col("phase").cast(pl.String),
            begins=pl.col("stage").cast(pl.String) == "START",
        )
    )


def _region(times: pl.Series, marks: pl.DataFrame) -> pl.Series:
    """Return the phase of the regions around each time."""
    change = pl.when("begins").then(1).otherwise(-1)
    open_ = marks.select(
        "ts",
        phase=pl.coalesce(
            pl.when((change * (pl.col("phase") == name)).cum_sum() > 0).then(
                pl.lit(name)
            )
            for name in _INNER_FIRST
        ),
    )
    return _as_of(times, open_, "phase")


def _as_of(times: pl.Series, marks: pl.DataFrame, column: str) -> pl.Series:
    """Return the value of the last mark at or before each time."""
    if marks.is_empty():
        return pl.Series([None], dtype=marks[column].dtype).new_from_index(
            0, len(times)
        )
    at = marks["ts"].search_sorted(times.fill_null(-1), side="right").cast(NUMBER) - 1
    value = marks[column][at.clip(lower_bound=0)]
    return pl.select(pl.when(at >= 0).then(value)).to_series()


def _steps(rows: pl.DataFrame, marks: pl.DataFrame) -> pl.Series:
    numbered = marks.filter("begins", pl.col("step").is_not_null())
    if numbered.height:
        return _as_of(rows["ts"], numbered, "step")
    running = pl.col("running")
    for last in ("optimizer", "backward"):
        before = running.shift(1).over("device")
        ends = ((before == last) & (running != last)).fill_null(value=False)
        if (rows["running"] == last).any():
            return rows.select(ends.cast(NUMBER).cum_sum().over("device")).to_series()
    return pl.Series([None], dtype=NUMBER).new_from_index(0, rows.height)
