"""A function that calls several models, as the update of an agent: one graph of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from traceq.analysis.base import assumptions, callers
from traceq.analysis.replay.simulation import NO_SPANS, Change
from traceq.analysis.time import host_activity
from traceq.common import intervals
from traceq.linter import (
    END,
    Evidence,
    Fix,
    asof,
    at_function,
    fill_false,
    has_like,
    listed,
    named_like,
    text,
)
from traceq.model import names

from ._compile_obstacles import forward_calls
from ._graphed_model import graphed_model
from ._host_bound_fixes import OF_OPS, replayed, uncompiled
from ._obstacle import HARD
from ._trainers import trainer_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.linter import View

    from ._obstacle import Obstacle

    _Function = tuple[str | None, int | None, str | None]

# What a graph of a whole function replaces: operators, and all Python between them.
_REPLAYED = (*OF_OPS, *host_activity.INTERRUPTED)
_PLACE = ("file", "line", "function")
_SEVERAL = 2
_SOME = 300
_MOST_PLACES = 2
# Steps of one kind differ by less. Heuristic threshold.
_OTHER_STEPS = 0.1


class WholeUpdate(NamedTuple):
    """One graph of a function that calls several models."""

    function: str
    """The function, and where it is."""
    advice: str
    fixes: list[Fix]


def _whole_update(view: View) -> WholeUpdate | None:
    """Return how one graph replays a function with several models, if there is one.

    It has their passes and the optimizers: what the host does between the models goes,
    too. What was seen that a graph cannot have is named. A function that loops over
    steps has to be taken apart.
    """
    place = _caller_of_models(view)
    if not place or not has_like(view.trace.frames, "run_backward"):
        return None
    calls = _calls_of(view, place)
    is_loop = 2 * calls.height <= view.steps
    windows = view.steady.windows.select("start", "end") if is_loop else calls
    needs = _needs(view)
    if _waits_in(view, windows):
        needs.append("no value that the host reads in between (SYN001)")
    if copies := _copies_in(view, place):
        needs.append(f"the copies from the host before it ({copies})")
    function = at_function(*place)
    what = f"all that {function} runs"
    if is_loop:
        what = f"a step of {function}, put into a function without loading and logging"
    what += ", passes of several models and optimizers"
    return WholeUpdate(function, _graph_of(what, needs), _fixes(view, windows))


def whole_step(view: View) -> str:
    """Return how one graph replays a step whose passes no function of one file calls.

    Each model as a graph of its own would overwrite what the next pass needs.
    """
    return _graph_of("the whole step, all of its passes and optimizers", _needs(view))


def _needs(view: View) -> list[str]:
    """Return what a graph of passes and optimizers needs."""
    needs = ["inputs that each step copies into the same tensors"]
    if has_like(view.annotations, r"^Optimizer\.step#Adam"):
        needs.insert(0, "capturable=True of Adam")
    if _steps_differ(view):
        needs.append("a graph for each kind of step")
    return needs


def _graph_of(what: str, needs: Sequence[str]) -> str:
    *most, last = needs
    return (
        f"replay one CUDA graph of {what}, with torch.cuda.graph: it needs"
        f" {', '.join(most)}{' and ' if most else ''}{last}"
    )


def update_of(view: View, obstacles: Sequence[Obstacle]) -> WholeUpdate | None:
    """Return the graph of a whole update of several models, if it can be replayed."""
    hard = any(obstacle.reason in HARD for obstacle in obstacles)
    eager = not (view.compiled or replayed(view) or uncompiled(obstacles))
    possible = eager and not view.distributed and not trainer_of(view)
    if not possible or (hard and not only_passes(obstacles)):
        return None
    return _whole_update(view)


def only_passes(obstacles: Sequence[Obstacle]) -> bool:
    """Return whether nothing but several passes forbids a graph of each model.

    They overwrite each other's gradients where each is a graph of its own.
    """
    return {obstacle.reason for obstacle in obstacles} & {*HARD} == {"passes"}


def update_line(view: View, update: WholeUpdate) -> Evidence:
    """Return what a step takes with one graph of the update, after other fixes."""
    changes = [
        Change(
            kernels=frozenset(fix.kernels),
            kernel_share=fix.kernel_share,
            spans=fix.spans if fix.spans is not None else NO_SPANS,
            host_share=fix.host_share,
        )
        for fix in update.fixes
    ]
    after = view.replay.run([*view.fixed, *changes], view.calibration.likely)
    note = f"a step, estimated, with one graph of {update.function}"
    return Evidence("update", value=after.step_ns, unit="ns", note=note)


def _fixes(view: View, windows: pl.DataFrame) -> list[Fix]:
    """Return what goes from the host in these windows, and the gaps between kernels."""
    launched = view.kernels.drop_nulls("launch")
    at = view.trace.runtime["ts"][launched["launch"]]
    inside = launched.filter(_during(windows, at))
    if not inside.height:
        return []
    rows = view.host_account.of(
        pl.col("kind").is_in(list(_REPLAYED)), "start", "end", "op"
    )
    sent = inside["op"].filter(named_like(inside, names.HTOD)).drop_nulls()
    paused = pl.col("end") - pl.col("start") > assumptions.MOST_BETWEEN_OPS_NS
    spans = rows.filter(
        _during(windows, rows["start"]),
        ~paused,
        ~fill_false(pl.col("op").is_in(sent.implode())),
    )
    calls = assumptions.COMPILED_CALL_KERNELS * windows.height / inside.height
    host_share = max(0.0, 1 - assumptions.GRAPH_LAUNCH_SHARE - calls)
    gaps_ns = float(view.replay.work["gap"].sum())
    share = min(
        1 - assumptions.COMPILED_GPU_SHARE, gaps_ns / max(1, view.steady.gpu_busy)
    )
    return [
        Fix(spans=spans.select("start", "end"), host_share=host_share),
        Fix(kernels=inside["id"], kernel_share=share),
    ]


def _waits_in(view: View, windows: pl.DataFrame) -> bool:
    waits = view.runtime.filter(pl.col("call") == "sync")
    return bool(_during(windows, waits["ts"]).any())


def _during(windows: pl.DataFrame, moments: pl.Series) -> pl.Series:
    """Return which moments are in a window."""
    until = intervals.Cover(windows.select("start", "end")).until
    return until(moments + 1) > until(moments)


def _calls_of(view: View, function: _Function) -> pl.DataFrame:
    """Return when a function of the program's own is called in the steps."""
    is_call = [
        pl.col(column).eq_missing(value)
        for column, value in zip(_PLACE, function, strict=True)
    ]
    calls = view.trace.frames.filter("own", *is_call).select(start="ts", end=END)
    return calls.filter(_during(view.steady.windows, calls["start"]))


def _caller_of_models(view: View) -> _Function | None:
    """Return the function that calls several models, if most are called there."""
    models = graphed_model(view.trace, view.steady).modules
    if models is None:
        return None
    calls = forward_calls(view.trace).select("ts", name=text("name"))
    calls = calls.filter(
        pl.col("name").str.extract(names.MODULE).is_in(models.implode())
    )
    if calls["name"].n_unique() < _SEVERAL:
        return None
    frames = view.trace.frames
    begun = frames.filter(
        named_like(frames, names.MODULE), pl.col("ts").is_in(calls["ts"].implode())
    ).select("thread", "ts")
    around = callers.callers(frames, begun.head(_SOME))
    if not around.height or 2 * around["calls"][0] < around["calls"].sum():
        return None
    file, line, function, _ = around.row(0)
    return file, line, function


def _steps_differ(view: View) -> bool:
    counts = view.kernels["step"].value_counts(name="kernels")["kernels"]
    least, most = counts.min(), counts.max()
    if not isinstance(least, int) or not isinstance(most, int):
        return False
    return most - least > _OTHER_STEPS * most


def _copies_in(view: View, function: _Function) -> str:
    """Return the functions that copy from the host in the calls of a function."""
    frames, kernels = view.trace.frames, view.kernels
    is_call = [
        pl.col(column).eq_missing(value)
        for column, value in zip(_PLACE, function, strict=True)
    ]
    calls = frames.filter("own", *is_call).select("ts", until=END).sort("ts")
    copies = kernels.filter(named_like(kernels, names.HTOD)).drop_nulls("op")
    ops = view.trace.ops[["ts", *_PLACE]][copies["op"]].sort("ts")
    inside = asof(ops, calls, "ts", "ts").filter(pl.col("ts") < pl.col("until"))
    places = inside.drop_nulls("function").group_by(_PLACE).len()
    places = places.sort("len", *_PLACE, descending=[True, False, False, False])
    named = [at_function(*place) for *place, _ in places.iter_rows()]
    return listed(named, _MOST_PLACES)
