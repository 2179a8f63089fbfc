"""Functions that call several models, and what runs in their calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import polars as pl

from traceq.analysis.base import callers
from traceq.common import intervals
from traceq.linter import END, asof, at_function, listed, named_like, text
from traceq.model import names

from ._compile_obstacles import forward_calls
from ._graphed_model import graphed_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.linter import View

Function: TypeAlias = "tuple[str | None, int | None, str | None]"

_PLACE = ("file", "line", "function")
_SEVERAL = 2
_SOME = 300
# A function that calls models less often than this, of the one that calls most, is
# beside the updates, as one that acts. Heuristic threshold.
_MUCH_CALLED = 1 / 4
_MOST_PLACES = 2


def during(windows: pl.DataFrame, moments: pl.Series) -> pl.Series:
    """Return which moments are in a window."""
    until = intervals.Cover(windows.select("start", "end")).until
    return until(moments + 1) > until(moments)


def calls_of(view: View, function: Function) -> pl.DataFrame:
    """Return when a function of the program's own is called in the steps."""
    is_call = [
        pl.col(column).eq_missing(value)
        for column, value in zip(_PLACE, function, strict=True)
    ]
    calls = view.trace.frames.filter("own", *is_call).select(start="ts", end=END)
    return calls.filter(during(view.steady.windows, calls["start"]))


def callers_of_models(view: View) -> list[Function]:
    """Return the functions that call several models, if one calls most of them."""
    models = graphed_model(view.trace, view.steady).modules
    if models is None:
        return []
    calls = forward_calls(view.trace).select("ts", name=text("name"))
    calls = calls.filter(
        pl.col("name").str.extract(names.MODULE).is_in(models.implode())
    )
    if calls["name"].n_unique() < _SEVERAL:
        return []
    frames = view.trace.frames
    begun = frames.filter(
        named_like(frames, names.MODULE), pl.col("ts").is_in(calls["ts"].implode())
    ).select("thread", "ts")
    around = callers.callers(frames, begun.head(_SOME))
    if not around.height or 2 * around["calls"][0] < around["calls"].sum():
        return []
    much = around.filter(pl.col("calls") >= _MUCH_CALLED * pl.col("calls").max())
    return [(file, line, function) for file, line, function, _ in much.iter_rows()]


def apart(
    view: View, calls: pl.DataFrame, others: Sequence[Function]
) -> list[tuple[Function, pl.DataFrame]]:
    """Return other functions whose calls are not in these, nor around them."""
    apart = []
    for other in others[:_MOST_PLACES]:
        theirs = calls_of(view, other)
        inside = during(calls, theirs["start"]) | during(calls, theirs["end"] - 1)
        if (
            theirs.height
            and not inside.any()
            and not during(theirs, calls["start"]).any()
        ):
            apart.append((other, theirs))
            calls = pl.concat([calls, theirs]).sort("start")
    return apart


def copies_in(view: View, function: Function) -> str:
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
