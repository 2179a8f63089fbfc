"""A function that calls several models, as the update of an agent: one graph of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import callers
from traceq.linter import END, asof, at_function, has_like, listed, named_like, text
from traceq.model import names

from ._compile_obstacles import forward_calls
from ._graphed_model import graphed_model

if TYPE_CHECKING:
    from traceq.linter import View

    _Function = tuple[str | None, int | None, str | None]

_PLACE = ("file", "line", "function")
_SEVERAL = 2
_SOME = 300
_MOST_PLACES = 2
# Steps of one kind differ by less. Heuristic threshold.
_OTHER_STEPS = 0.1


def whole_update(view: View) -> str:
    """Return how one graph replays a function with several models, if there is one.

    It has their passes and the optimizers: what the host does between the models goes,
    too. What was seen that a graph cannot have is named.
    """
    place = _caller_of_models(view)
    if not place or not has_like(view.trace.frames, "run_backward"):
        return ""
    return f"; or replay one CUDA graph of {_all_of(view, place)}"


def whole_step(view: View) -> str:
    """Return how one graph replays a step of several passes that are not alike.

    Each model as a graph of its own would overwrite what the next pass needs.
    """
    return f"replay one CUDA graph of {_all_of(view, _caller_of_models(view))}"


def _all_of(view: View, place: _Function | None) -> str:
    """Return what a graph of all passes and optimizers is of, and what it needs."""
    needs = ["inputs that each step copies into the same tensors"]
    if has_like(view.annotations, r"^Optimizer\.step#Adam"):
        needs.insert(0, "capturable=True of Adam")
    if _steps_differ(view):
        needs.append("a graph for each kind of step")
    if place and (copies := _copies_in(view, place)):
        needs.append(f"the copies from the host before it ({copies})")
    *most, last = needs
    whole = "the whole step, all of its passes and optimizers"
    if place:
        whole = f"all that {at_function(*place)} runs, passes of several models and"
        whole += " optimizers"
    return (
        f"{whole}, with torch.cuda.graph: it needs"
        f" {', '.join(most)}{' and ' if most else ''}{last}"
    )


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
