"""The steps of a trace: where they begin and end on the host, and on the GPU."""

from __future__ import annotations

from itertools import accumulate, combinations
from typing import TYPE_CHECKING

import polars as pl
from msgspec import Struct

from traceq.common.expressions import END
from traceq.common.intervals import covered, overlap
from traceq.graph import marked_steps
from traceq.graph.devices import busiest_device
from traceq.graph.host import only
from traceq.graph.launches import late_start, outside_captures
from traceq.model import schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceq.graph.host import Frames
    from traceq.graph.iterations import Iterations
    from traceq.model.run import LongSteps

CERTAIN, LIKELY, GUESS = "certain", "likely", "guess"
# A first step this much longer than the others is warm-up.
_WARMUP = 1.5
_FEWEST_WITHOUT_WARMUP = 2
# A step with less than this share of the ops of any other is not whole.
_CUT = 0.85
# Heuristic thresholds: a step is close enough to the average within this fraction of
# its time. Of more steps than this, the fractions of long and typical ones are as
# recorded.
_NEAR = 0.05
_MOST_CHOSEN_FROM = 400
# A GPU that is behind the host is busy for more than this share of the time.
_DENSE = 0.5
# Fewer kernels of the launches of a last step: the recording ended before they ran.
_WHOLE = 0.5


_REPEATS = "what repeats"
_NEVER = -(1 << 63)
_NONE = pl.DataFrame(schema={"ts": pl.Int64, "end": pl.Int64})


class Steps(Struct, frozen=True):
    """The steps' windows on the host."""

    windows: pl.DataFrame
    """``step``, ``ts`` and ``end``, in order."""
    source: str
    """The source of the steps, in words; empty if there are none."""
    sure: str
    """The confidence in that: certain, likely or guess."""


def find(raw: Frames, regions: pl.DataFrame, by: str = "") -> Steps:
    """Return the steps from one of ``SOURCES``, or from the first that has any."""
    host = pl.concat([raw["annotations"], regions], how="horizontal").filter(
        ~pl.col("on_gpu")
    )
    for source in [by] if by else SOURCES:
        if source in _FINDERS and (steps := _FINDERS[source](host, raw)):
            return steps
    if by == "repeats" and (loop := _loop(raw, insist=True)):
        return Steps(_numbered(loop.windows), _REPEATS, GUESS)
    return Steps(_numbered(_NONE), "", "")


def _numbered(windows: pl.DataFrame) -> pl.DataFrame:
    """Return windows that have no numbers of their own with numbers from 0 on."""
    return windows.sort("ts").select(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("step"), "ts", "end"
    )


def _by_profiler(host: pl.DataFrame, _: Frames) -> Steps | None:
    windows = marked_steps.of_profiler(host)
    return Steps(windows, "ProfilerStep", CERTAIN) if windows.height else None


def _by_annotation(host: pl.DataFrame, raw: Frames) -> Steps | None:
    if marked := marked_steps.of_engine(host):
        windows, source = marked
        return Steps(_numbered(windows), source, CERTAIN)
    if marked := marked_steps.of_user(host, raw):
        windows, source = marked
        return Steps(_numbered(windows), source, LIKELY)
    return None


def _by_optimizer(host: pl.DataFrame, raw: Frames) -> Steps | None:
    calls = marked_steps.optimizer_calls(host, raw["ops"])
    if not calls.height:
        return None
    turns = marked_steps.turns(calls["name"])
    if turns == 1 and calls.height > 1 and (loop := _loop(raw)):
        # Two optimizers of one class take turns in a loop of half as many iterations.
        turns = max(1, calls.height // loop.windows.height)
        turns = turns if turns * loop.windows.height == calls.height else 1
    if not turns:
        return None
    ends = calls.gather_every(turns, offset=turns - 1)
    windows = ends.select(ts=pl.col("end").shift(1, fill_value=0), end="end")
    windows = _without_cut(windows, raw["ops"])
    return Steps(_numbered(windows), "Optimizer.step", LIKELY if turns > 1 else CERTAIN)


def _without_cut(windows: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Leave the first window out if the recording began within its step.

    It has the end of a step then, and fewer ops than all the others.
    """
    if windows.height <= _FEWEST_WITHOUT_WARMUP:
        return windows
    begun = ops["ts"].sort().search_sorted(windows["ts"])
    ended = ops["ts"].sort().search_sorted(windows["end"])
    first, *others = (ended.cast(pl.Int64) - begun.cast(pl.Int64)).to_list()
    return windows.slice(1) if first < _CUT * min(others) else windows


def _by_repeats(_: pl.DataFrame, raw: Frames) -> Steps | None:
    loop = _loop(raw)
    if loop is None:
        return None
    return Steps(_numbered(loop.windows), _REPEATS, LIKELY if loop.firm else GUESS)


def _by_graph(_: pl.DataFrame, raw: Frames) -> Steps | None:
    from traceq.graph.iterations import graph_launches  # noqa: PLC0415 - as below

    windows = graph_launches(raw)
    if windows is None:
        return None
    return Steps(_numbered(windows), "CUDA graph launches", LIKELY)


def _loop(raw: Frames, *, insist: bool = False) -> Iterations | None:
    from traceq.graph.iterations import find  # noqa: PLC0415 - few traces need it

    return find(raw, insist=insist)


_FINDERS: dict[str, Callable[[pl.DataFrame, Frames], Steps | None]] = {
    "profiler": _by_profiler,
    "annotation": _by_annotation,
    "optimizer": _by_optimizer,
    "repeats": _by_repeats,
    "graph": _by_graph,
}
SOURCES = (*_FINDERS, "none")
"""Sources of steps, in the order in which they are tried."""


def step_at(steps: pl.DataFrame, times: pl.Series) -> pl.Series:
    """Return the number of the step at a time, null outside of all steps."""
    if not steps.height:
        return pl.Series([None], dtype=pl.Int64).new_from_index(0, len(times))
    # Before the first step is none, and none ends there.
    step = pl.concat([pl.Series([None], dtype=pl.Int64), steps["step"]], rechunk=True)
    end = pl.concat([pl.Series([_NEVER], dtype=pl.Int64), steps["end"]], rechunk=True)
    at = steps["ts"].search_sorted(times, side="right")
    return only(step[at], times < end[at]).alias("step")


def place_stray(kernels: pl.DataFrame, steps: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Give work whose launch is not in the file to the step in which it ran.

    Not so the backlog: when recording began, the GPU may still have been busy with
    work launched before, and that belongs to no step. Returns when it was done too.
    """
    if not (kernels["step"].is_null() & kernels["launch"].is_null()).any():
        return kernels, 0
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


def measure(
    steps: pl.DataFrame, kernels: pl.DataFrame, runtime: pl.DataFrame, backlog: int
) -> pl.DataFrame:
    """Complete the table of steps with their launches and what the GPU did in them.

    The GPU runs behind the host: a step begins for it when the work of all earlier
    steps, and the ``backlog`` from before, is done, and ends when both sides are done
    with it. On a machine with several GPUs the busiest one counts.
    """
    work = busiest_device(kernels)
    gpu = work.select("step", "launch", start="ts", end=END).sort("start")
    backlog = max(backlog, _earlier(gpu), late_start(work, runtime)[0])
    by_step = (
        gpu.lazy()
        .filter(pl.col("step").is_not_null())
        .group_by("step")
        .agg(
            pl.col("end").max().alias("gpu_end"),
            covered(pl.col("start"), pl.col("end")).sum().alias("gpu_busy"),
            pl.len().alias("kernels"),
        )
        .collect()
    )
    calls = runtime[["id", "thread", "ts", "name", "call", "step"]]
    launched = outside_captures(calls).group_by("step").agg(launches=pl.len())
    windows = (
        steps.join(by_step, on="step", how="left", maintain_order="left")
        .join(launched, on="step", how="left", maintain_order="left")
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
    warmup = _warmup(timed["time"])
    steady = ~warmup
    whole = steady & ~cut_off(timed)
    averaged = (whole if whole.any() else steady).alias("averaged")
    return schema.TABLES["steps"].shaped(
        timed.with_columns(_idle(timed, gpu), warmup, averaged)
    )


def cut_off(steps: pl.DataFrame) -> pl.Series:
    """Mark the last steps whose work the GPU did not get to before recording ended.

    A host that runs ahead launches them, and most of their kernels are not recorded.
    Where that holds for all steps, none is marked: the trace has no GPU work.
    """
    whole = steps["kernels"] >= _WHOLE * steps["launches"]
    if not whole.any():
        return whole
    return ~whole.reverse().cum_max().reverse()


def _earlier(gpu: pl.DataFrame) -> int:
    """Return the time at which work launched before the first step ends on the GPU."""
    first = gpu.filter(pl.col("step").is_not_null())["start"].min()
    if not isinstance(first, int):
        return 0
    before = gpu.filter(
        pl.col("step").is_null(),
        pl.col("launch").is_not_null(),
        pl.col("start") < first,
    )
    done = before["end"].max()
    return done if isinstance(done, int) else 0


def _longest_later(times: pl.Series, at: int) -> int:
    """Return the longest step after the first ones, which all get shorter."""
    rest = times[at + 1 :].to_list()
    while len(rest) > 1 and rest[0] > rest[1]:
        rest.pop(0)
    return max(rest[1:], default=0)


def _idle(steps: pl.DataFrame, gpu: pl.DataFrame) -> pl.Series:
    """Return the time of each step in which the GPU ran nothing, of any step."""
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


def representative(steps: pl.DataFrame, long: LongSteps, share: float) -> pl.Series:
    """Return the steps to average over, if some are longer than others.

    These are steps that follow each other, as a replay runs them, and among which long
    ones have about the share that they have in the program: the most of them, else the
    nearest.
    """
    chosen = steps["averaged"]
    first, count = int(chosen.arg_max() or 0), int(chosen.sum())
    is_long = long.among(steps["time"].filter(chosen).to_list())
    if not any(is_long) or all(is_long) or count > _MOST_CHOSEN_FROM:
        return chosen
    until = [0, *accumulate(is_long)]
    wanted = long.mean_ns(share)

    def error(ends: tuple[int, int]) -> tuple[float, int, int]:
        start, end = ends
        mean = long.mean_ns((until[end] - until[start]) / (end - start))
        off = abs(mean - wanted) / wanted
        # The later the better: the profiler's own start is in the first.
        return off if off > _NEAR else 0.0, start - end, -start

    start, end = min(combinations(range(count + 1), 2), key=error)
    at = pl.int_range(steps.height, eager=True)
    return at.is_between(first + start, first + end - 1).alias("averaged")
