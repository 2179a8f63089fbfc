"""The host's activities while the GPU waits for it, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.time import host_activity
from traceq.linter import at_function, counted, listed, text, time

from ._host_bound_fixes import OF_OPS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import View

_MOST_ENTRIES, _MOST_PLACES = 4, 2
# What a step does beside the model, as the loss, takes less. Heuristic threshold.
_MUCH_OUTSIDE = 1 / 3
# Less of the waits is not worth naming. Heuristic threshold.
_LEAST_OF_FUNCTION = 0.1
_LEAVES = (
    ", and leaves what the host does outside of the model, {} of these waits: see"
    " whether each step needs it, in {}"
)


def entries_of_waits(view: View) -> Iterator[tuple[str, float, str]]:
    """Yield what the host does most while the GPU waits: kind, time a step, words."""
    lines = view.waits.lines
    for kind, ns, calls in view.waits.kinds.head(_MOST_ENTRIES).iter_rows():
        line = lines.row((lines["kind"] == kind).arg_max(), named=True)
        where = (line["file"], line["line"], line["function"])
        # The line of most operators is not that of Python between them.
        of_ops = kind in OF_OPS
        place = (
            at_hottest(view, *where, name=line["name"])
            if of_ops
            else at_function(*where)
        )
        name = None if place and line["name"] == line["function"] else line["name"]
        most = " in ".join(filter(None, (name, place)))
        what = host_activity.work_name(kind)
        if kind == host_activity.DISPATCH:
            what = counted(round(calls) or calls, "operator")
        yield kind, ns, f"{what} (most in {most})" if most else what


def longest_functions(view: View) -> str:
    """Return the user's functions that the GPU waits for longest, and how long.

    Without any, as without stacks, it is what the host does most.
    """
    lasting = view.waits.lasting["kind"]
    lines = view.waits.lines.filter(pl.col("kind").is_in(lasting.implode()))
    places = (
        lines.drop_nulls("function")
        .group_by("file", "line", "function")
        .agg(pl.col("time").sum())
        .filter(pl.col("time") >= _LEAST_OF_FUNCTION * view.waits.idle_ns)
        .sort("time", "file", "line", descending=[True, False, False])
        .head(_MOST_PLACES)
    )
    named = [
        f"{at_hottest(view, *place)} ({time(ns)} a step)"
        for *place, ns in places.iter_rows()
    ]
    if not named:
        named = [what for _, _, what in [*entries_of_waits(view)][:_MOST_PLACES]]
    return " and in ".join(named)


def at_hottest(
    view: View,
    file: str | None,
    line: int | None,
    function: str | None,
    *,
    name: str | None = None,
) -> str:
    """Write a function by the line that takes the host longest in operators, if known.

    Those are the operators of one name, if the function calls any. Else it is written
    by where it begins.
    """
    where = at_function(file, line, function)
    if not file or not function:
        return where
    # An op inside of another one is at the same line.
    ops = view.ops.filter(
        text("file").eq_missing(file),
        pl.col("line").eq_missing(line),
        text("function").eq_missing(function),
        pl.col("call_line").is_not_null(),
        text("phase").ne_missing("backward"),
    )
    same = ops.filter(text("name") == name) if name else ops
    ops = same if same.height else ops
    hottest = (
        ops.group_by("call_line")
        .agg(pl.col("dur").sum())
        .sort("dur", "call_line", descending=[True, False])
    )
    return f"{function} ({file}:{hottest['call_line'][0]})" if hottest.height else where


def outside_of_model(view: View) -> str:
    """Return how long the GPU waits for what is outside of the model, and where."""
    ops = view.ops
    function = pl.col("file", "function").cast(pl.String)
    inside = pl.col("module").is_not_null()
    called = ops.group_by(function).agg(inside=inside.mean())
    # A function that calls the model has some of its ops in it.
    rows = called.filter(pl.col("inside") > 1 / 2)
    if not rows.height:
        return ""
    lines = view.waits.lines.with_columns(function)
    around = lines.drop_nulls("function").join(
        rows, on=["file", "function"], how="anti", maintain_order="left"
    )
    stays_ns = float(around["time"].sum())
    if stays_ns < _MUCH_OUTSIDE * float(lines["time"].sum()):
        return ""
    places = around.group_by("file", "line", "function").agg(pl.col("time").sum())
    places = places.sort("time", descending=True).head(_MOST_PLACES)
    named = [at_hottest(view, *row[:3]) for row in places.iter_rows()]
    return _LEAVES.format(time(stays_ns), listed(named, _MOST_PLACES))
