"""Lines of loops, from the source of a function and the ops seen in an iteration."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from traceq.common.expressions import END, text
from traceq.graph.nesting import in_preorder, parents
from traceq.graph.source.control_flow import CALL, graph_of, loops_of
from traceq.linter.finding_lines import program_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from traceq.graph.source.control_flow import Function
    from traceq.graph.source.loop_bodies import LoopBody
    from traceq.model.finding import Place
    from traceq.model.trace import Trace

_FUNCTION = ("file", "line", "function")
# Several loops that have the same operator, as a product of numbers, tell nothing.
_ENOUGH = 2
# Lines of a smaller share of an op's calls are not of the loop. Heuristic threshold.
_FEW = 1 / 8


def loop_lines(
    trace: Trace, place: Place, ops: Collection[int], least: int
) -> list[int]:
    """Return the lines of the loops in a place's function that run these ops.

    Those are its innermost loops whose body has all ops that the function itself calls
    ``least`` often: at their lines, where these are known, else by what is written. An
    op that is written nowhere in the function, as one of a layer, tells nothing: where
    all are, the functions tell that it calls as often. There are no lines without the
    source, and where no loop fits.
    """
    function = function_at(trace, place)
    if function is None:
        return []
    lines = _lines_of_ops(function, _calls(trace, place, ops, least))
    lines = lines or _lines_of_functions(trace, place, ops, least)
    fitting = [
        loop
        for loop in loops_of(function)
        if all(any(loop.first <= at <= loop.last for at in line) for line in lines)
    ]
    innermost = {
        loop.line: None
        for loop in fitting
        if not any(loop.line < other.line <= loop.last for other in fitting)
    }
    unclear = not lines or (len(innermost) > 1 and len(lines) < _ENOUGH)
    return [] if unclear else [*innermost]


def loop_body(trace: Trace, place: Place, lines: list[int]) -> LoopBody | None:
    """Return what an iteration of the loops at these lines of a place leaves behind.

    None without the source, and where several loops differ.
    """
    from traceq.graph.source.loop_bodies import body_of  # noqa: PLC0415 - few need it

    function = function_at(trace, place)
    if function is None or not lines:
        return None
    first, *others = [body_of(function, line) for line in lines]
    return first if all(other == first for other in others) else None


def function_at(trace: Trace, place: Place) -> Function | None:
    """Return the function of a place, if its source was recorded."""
    source = trace.rank.sources.get(place.file or "") if trace.rank else None
    return program_of(source).find(place.function or "", place.line) if source else None


def at_loops(place: Place, lines: list[int]) -> Place:
    """Return the same place at the lines of its loops, if there are any."""
    if not lines:
        return place
    others = len(lines) - 1
    return replace(
        place, line=lines[0], line_is="call", begins=place.line, other_lines=others
    )


def _calls(
    trace: Trace, place: Place, ops: Collection[int], least: int
) -> pl.DataFrame:
    """Return the ops that a function calls this often, with the lines of most calls.

    Those of a few calls are of code beside the loop. A null is for unknown lines.
    """
    rows = trace.ops[["name", "forward", "call_line", *_FUNCTION]][[*ops]]
    here = [pl.col(name).eq_missing(getattr(place, name)) for name in _FUNCTION]
    count = pl.len().over("name")
    many = pl.len().over("name", "call_line") >= _FEW * count
    return (
        rows.filter(pl.col("forward").is_null(), *here)
        .filter(count >= least, many)
        .group_by(name=text("name"), maintain_order=True)
        .agg(pl.col("call_line").unique())
    )


def _lines_of_functions(
    trace: Trace, place: Place, ops: Collection[int], least: int
) -> list[set[int]]:
    """Return the lines at which a function calls others this often meanwhile."""
    frames = trace.frames
    if not frames["call_line"].count():
        return []
    times = trace.ops[["ts", "dur", "thread"]][[*ops]]
    first, last = times["ts"].min(), times.select(END.max()).item()
    near = frames.filter(
        pl.col("thread").is_in(times["thread"].unique().implode()),
        first < END,
        pl.col("ts") < last,
    )
    tree = in_preorder(
        near.select("thread", "ts", "call_line", "dur", *_FUNCTION, end=END)
    )
    around = tree[parents(tree["thread"], tree["end"])]
    here = [around[name].eq_missing(getattr(place, name)) for name in _FUNCTION]
    called = tree.filter(*here, tree["ts"] >= first).drop_nulls("call_line")
    counts = called["call_line"].value_counts().filter(pl.col("count") >= least)
    return [{line} for line in counts["call_line"]]


def _lines_of_ops(function: Function, calls: pl.DataFrame) -> list[set[int]]:
    """Return the lines at which each op may run, of those that are written there."""
    from traceq.graph.source.follow import Event, Follower  # noqa: PLC0415 - few need it

    graph = graph_of(function)
    written = Follower(graph, ())
    lines = []
    for name, known in calls.iter_rows():
        op = name.removeprefix("aten::")
        at = {line for line in known if line is not None}
        if None in known:
            nodes = written.matching(Event("op", op))
            nodes |= written.matching(Event(CALL, op))
            at |= {graph.nodes[node].line for node in nodes}
        lines.append(at)
    return [line for line in lines if line]
