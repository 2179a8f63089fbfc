"""The steps of a trace: where they begin and end on the host, and on the GPU."""

from __future__ import annotations

import polars as pl

from traceq.expressions import END, text
from traceq.graph.devices import busiest_device
from traceq.intervals import covered, overlap
from traceq.model import schema
from traceq.model.names import COLLECTED_STEP, OPTIMIZER_STEP

PROFILER = "ProfilerStep"
OPTIMIZER = "Optimizer.step"

# A first step this much longer than the others is warm-up.
_WARMUP = 1.5
_FEWEST_WITHOUT_WARMUP = 2
# The end of a step and the start of the next may differ by this much.
_CLOCK_NS = 1_000
# A GPU that is behind the host is busy for more than this share of the time.
_DENSE = 0.5


def find(annotations: pl.DataFrame, regions: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Return the steps' host windows, and what they were taken from."""
    host = pl.concat([annotations, regions], how="horizontal").filter(~pl.col("on_gpu"))
    steps = (
        _marks(host)
        .group_by("step")
        .agg(pl.col("ts").min(), END.max().alias("end"))
        .sort("ts")
    )
    if steps.height:
        return _one_series(steps), PROFILER
    return _between_optimizer_steps(host)


def _marks(host: pl.DataFrame) -> pl.DataFrame:
    """Return the annotations that mark steps: those of traceq collect if it named any.

    It does where the program has a profiler that marks steps too, recording or not.
    """
    marks = host.filter(pl.col("step").is_not_null())
    collected = marks.filter(text("name").str.starts_with(COLLECTED_STEP))
    return collected if collected.height else marks


def _one_series(steps: pl.DataFrame) -> pl.DataFrame:
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
    ended = [one for one in series if one[-1][2] <= start + _CLOCK_NS]
    for one in ended:
        if one[-1][0] + 1 == number:
            return one
    if not ended:
        series.append([])
    return ended[0] if ended else series[-1]


def _between_optimizer_steps(host: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Without the profiler's own marks, a step ends where the optimizer's does."""
    ends = host.filter(text("name").str.contains(OPTIMIZER_STEP))
    # With two optimizers there is no telling which of them ends the step.
    if ends["name"].n_unique() != 1:
        return pl.DataFrame(
            schema={"step": pl.Int64, "ts": pl.Int64, "end": pl.Int64}
        ), ""
    steps = ends.sort("ts").select(
        step=pl.int_range(pl.len()),
        ts=END.shift(1, fill_value=0),
        end=END,
    )
    return steps, OPTIMIZER


def step_at(steps: pl.DataFrame, times: pl.Series) -> pl.Series:
    """Return the number of the step that a time falls into, none outside of all."""
    if not steps.height:
        return pl.Series([None], dtype=pl.Int64).new_from_index(0, len(times))
    at = steps["ts"].search_sorted(times, side="right").cast(pl.Int64) - 1
    window = steps.select(pl.all().gather(at.clip(lower_bound=0)))
    inside = (at >= 0) & (times < window["end"])
    return pl.select(pl.when(inside).then(window["step"])).to_series()


def place_stray(kernels: pl.DataFrame, steps: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Give work whose launch is not in the file to the step in which it ran.

    Not so the backlog: when recording began, the GPU may still have been busy with
    work launched before, and that belongs to no step. Returns when it was done too.
    """
    stray = pl.col("step").is_null() & pl.col("launch").is_null()
    rows = kernels.with_columns(
        stray.alias("stray"),
        first=pl.col("ts").filter(~stray).min().over("device", "stream"),
        inside=step_at(steps, kernels["ts"]),
    ).with_columns(
        early=(pl.col("stray") & (pl.col("ts") < pl.col("first"))).fill_null(
            value=False
        )
    )
    done = _end_of_backlog(rows.filter("early"), steps)
    backlog = pl.col("early") & pl.lit(done > 0)
    placed = rows.with_columns(
        step=pl.when(pl.col("stray") & ~backlog).then("inside").otherwise("step")
    )
    return placed.drop("stray", "first", "inside", "early"), done


def _end_of_backlog(early: pl.DataFrame, steps: pl.DataFrame) -> int:
    """Tell a backlog, which is dense, from a file with holes; return its end or 0."""
    begin = steps["ts"].min()
    if not isinstance(begin, int):
        return 0
    spans = (
        early.select(start=pl.col("ts").clip(lower_bound=begin), end=END)
        .filter(pl.col("end") > pl.col("start"))
        .sort("start")
    )
    end = spans["end"].max()
    if not isinstance(end, int):
        return 0
    busy = spans.select(covered(pl.col("start"), pl.col("end")).sum()).item()
    return end if busy >= _DENSE * (end - begin) else 0


def measure(steps: pl.DataFrame, kernels: pl.DataFrame, backlog: int) -> pl.DataFrame:
    """Complete the table of steps with what the GPU did in them.

    The GPU runs behind the host: a step begins for it when the work of all earlier
    steps, and the ``backlog`` from before, is done, and ends when both sides are done
    with it. On a machine with several GPUs the busiest one counts.
    """
    gpu = (
        busiest_device(kernels)
        .select(
            "step",
            "launch",
            start="ts",
            end=END,
            launched=pl.col("activity") == "kernel",
        )
        .sort("start")
    )
    work = (
        gpu.lazy()
        .filter(pl.col("step").is_not_null())
        .group_by("step")
        .agg(
            pl.col("end").max().alias("gpu_end"),
            covered(pl.col("start"), pl.col("end")).sum().alias("gpu_busy"),
            pl.len().alias("kernels"),
            pl.col("launch")
            .filter("launched")
            .drop_nulls()
            .n_unique()
            .alias("launches"),
        )
        .collect()
    )
    windows = (
        steps.join(work, on="step", how="left", maintain_order="left")
        .with_columns(
            done=pl.max_horizontal(pl.col("gpu_end").cum_max().forward_fill(), backlog)
        )
        .with_columns(
            start=pl.max_horizontal("ts", pl.col("done").shift(1, fill_value=backlog)),
            finish=pl.max_horizontal("end", "done"),
        )
    )
    timed = windows.select(
        "step",
        "ts",
        dur=pl.col("end") - pl.col("ts"),
        start=pl.min_horizontal("start", "finish"),
        end=pl.col("finish"),
        time=(pl.col("finish") - pl.col("start")).clip(lower_bound=0),
        gpu_busy=pl.col("gpu_busy").fill_null(0),
        kernels=pl.col("kernels").fill_null(0),
        launches=pl.col("launches").fill_null(0),
    )
    return schema.TABLES["steps"].shaped(
        timed.with_columns(_idle(timed, gpu), _warmup(timed["time"]))
    )


def _longest_later(times: pl.Series, at: int) -> int:
    """Return the longest step after the first ones, which all get shorter."""
    rest = times[at + 1 :].to_list()
    while len(rest) > 1 and rest[0] > rest[1]:
        rest.pop(0)
    return max(rest[1:], default=0)


def _idle(steps: pl.DataFrame, gpu: pl.DataFrame) -> pl.Series:
    """Return how long in each step nothing ran on the GPU, of any step."""
    if not gpu.height:
        return pl.Series("gpu_idle", [None] * steps.height, dtype=pl.Int64)
    idle = steps["time"] - overlap(steps, gpu)
    return idle.clip(lower_bound=0).alias("gpu_idle")


def _warmup(times: pl.Series) -> pl.Series:
    """Mark the steps at the start that took far longer than all those after them.

    Warm-up does not come back: a first step is none if a later one is as long again.
    """
    marks = [False] * len(times)
    for at, time in enumerate(times.to_list()):
        rest = times[at + 1 :]
        typical = rest.median()
        if len(rest) < _FEWEST_WITHOUT_WARMUP or not isinstance(typical, float):
            break
        if time <= _WARMUP * typical or time <= _WARMUP * _longest_later(times, at):
            break
        marks[at] = True
    return pl.Series("warmup", marks, dtype=pl.Boolean)
