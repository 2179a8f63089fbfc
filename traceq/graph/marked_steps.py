"""Marked steps: by the profiler, an engine, the user or the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.common.expressions import END, text
from traceq.model.names import (
    BACKWARD_OP,
    COLLECTED_STEP,
    ITERATIONS,
    OPTIMIZER_STEP,
    USER_ITERATION,
    VLLM_FIRST_SCOPE,
    VLLM_SCOPE,
)

if TYPE_CHECKING:
    from traceq.graph.host import Frames

# The end of a step and the start of the next may differ by this much.
_CLOCK_NS = 1_000
# A user's regions are steps if at least this much of the work is inside of them.
_MOST_WORK = 0.8


def of_profiler(host: pl.DataFrame) -> pl.DataFrame:
    """Return the windows of the profiler's steps, with their numbers."""
    steps = (
        _marks(host)
        .group_by("step")
        .agg(pl.col("ts").min(), END.max().alias("end"))
        .sort("ts")
    )
    return _longest_series(steps) if steps.height else steps


def _marks(host: pl.DataFrame) -> pl.DataFrame:
    """Return the annotations that mark steps: those of traceq collect if it named any.

    It does where the program has a profiler that marks steps too, recording or not.
    """
    marks = host.filter(pl.col("step").is_not_null())
    collected = marks.filter(text("name").str.starts_with(COLLECTED_STEP))
    return collected if collected.height else marks


def _longest_series(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the longest series of steps where two profilers marked theirs.

    Steps of one series follow each other; those of two overlap.
    """
    overlap = steps["end"].cum_max().shift(1) - steps["ts"] > _CLOCK_NS
    if not overlap.any():
        return steps
    series: list[list[tuple[int, int, int]]] = []
    for step in steps.select("step", "ts", "end").iter_rows():
        _series_of(step, series).append(step)
    longest = max(series, key=lambda one: sum(end - ts for _, ts, end in one))
    numbers = [number for number, _, _ in longest]
    return steps.filter(pl.col("step").is_in(numbers))


def _series_of(
    step: tuple[int, int, int], series: list[list[tuple[int, int, int]]]
) -> list[tuple[int, int, int]]:
    """Return the series that a step continues, by its number if several end before."""
    number, start, _ = step
    ended = [item for item in series if item[-1][2] <= start + _CLOCK_NS]
    for group in ended:
        if group[-1][0] + 1 == number:
            return group
    if not ended:
        series.append([])
    return ended[0] if ended else series[-1]


def of_engine(host: pl.DataFrame) -> tuple[pl.DataFrame, str] | None:
    """Return the iterations that an engine or a trainer marked, and its name."""
    for whose, pattern in ITERATIONS:
        marked = host.filter(text("name").str.contains(pattern))
        if marked.height:
            return _until_the_next(_outermost(marked)), whose
    scopes = host.filter(text("name").str.contains(VLLM_SCOPE))
    if scopes.filter(text("name") == VLLM_FIRST_SCOPE).height:
        return _until_the_next(_of_scopes(scopes)), "vLLM's gpu_model_runner scopes"
    return None


def _of_scopes(scopes: pl.DataFrame) -> pl.DataFrame:
    """Return the windows of iterations, each from its first scope to its last."""
    number = (text("name") == VLLM_FIRST_SCOPE).cum_sum()
    return (
        scopes.sort("ts")
        .select("ts", end=END, number=number)
        .filter(pl.col("number") > 0)
        .group_by("number", maintain_order=True)
        .agg(pl.col("ts").first(), pl.col("end").max())
        .drop("number")
    )


def of_user(host: pl.DataFrame, raw: Frames) -> tuple[pl.DataFrame, str] | None:
    """Return the user's regions that are steps by their name and by what is inside."""
    named = host.filter(text("name").str.contains(USER_ITERATION)).with_columns(
        kind=text("name").str.replace_all(r"\d+", "…")
    )
    work = raw["runtime"] if raw["runtime"].height else raw["ops"]
    best: tuple[float, pl.DataFrame, str] | None = None
    for (kind,), rows in named.group_by("kind", maintain_order=True):
        windows = _outermost(rows)
        share = _share_inside(work["ts"], windows)
        if windows.height > 1 and share >= _MOST_WORK and (not best or share > best[0]):
            best = share, windows, str(kind)
    return (_until_the_next(best[1]), f"regions named {best[2]}") if best else None


def _outermost(marked: pl.DataFrame) -> pl.DataFrame:
    """Return the windows of regions without those inside of another one."""
    windows = marked.select("ts", end=END).sort("ts", -pl.col("end"))
    before = pl.col("end").cum_max().shift(1, fill_value=-1)
    return windows.filter(pl.col("ts") >= before - _CLOCK_NS)


def _share_inside(times: pl.Series, windows: pl.DataFrame) -> float:
    """Return the fraction of the times that is in a window."""
    begun = windows["ts"].search_sorted(times, side="right").cast(pl.Int64)
    ended = windows["end"].search_sorted(times, side="right").cast(pl.Int64)
    return float((begun > ended).sum()) / max(len(times), 1)


def _until_the_next(windows: pl.DataFrame) -> pl.DataFrame:
    """Let each one last until the next begins, unless there is a pause between them.

    What is done between two iterations, as scheduling and sampling, is of the first. A
    pause is longer than an iteration usually takes, from its start to the next one's.
    """
    following = pl.col("ts").shift(-1)
    pause = following - pl.col("end") > (following - pl.col("ts")).median()
    return windows.with_columns(
        end=pl.when(pause).then("end").otherwise(following.fill_null(pl.col("end")))
    )


def optimizer_calls(host: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of optimizers, ``name``, ``ts`` and ``end``, in order.

    Calls that follow each other without a backward between them are one: of several
    optimizers, of an optimizer in parts. So is one that is inside of another.
    """
    calls = (
        host.filter(text("name").str.contains(OPTIMIZER_STEP))
        .select(text("name"), "ts", end=END)
        .sort("ts", -pl.col("end"))
    )
    backward = ops.filter(text("name").str.contains(BACKWARD_OP))
    # Without a backward, as where only a part was recorded, anything between counts.
    work = (backward if backward.height else ops)["ts"].sort()
    after = work.search_sorted(calls["end"])
    before = work.search_sorted(calls["ts"])
    nothing_between = before <= after.shift(1)
    inside = calls["ts"] < calls["end"].cum_max().shift(1)
    first = ~(nothing_between | inside).fill_null(value=False)
    return (
        calls.group_by(first.cum_sum().alias("call"), maintain_order=True)
        .agg(
            pl.col("name").unique(maintain_order=True).str.join(" "),
            pl.col("ts").first(),
            pl.col("end").max(),
        )
        .drop("call")
    )


def turns(names: pl.Series) -> int:
    """Return the number of optimizer calls in one cycle over all optimizers.

    0 where there is no telling.

    >>> turns(pl.Series(["D", "D", "G", "D", "D", "G"]))
    3
    """
    for turn in range(1, len(names) // 2 + 1):
        if (names.shift(turn) == names).all():
            return turn
    return len(names) if names.is_unique().all() else 0
