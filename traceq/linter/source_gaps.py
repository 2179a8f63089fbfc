"""Lines of a function at which time passes, by the calls around it and the source.

What a trace shows of a function are its calls, each with a line. Time between two of
them is of what the source has between them, and time in a call is of its line.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from traceq.common.expressions import END, text
from traceq.graph.nesting import in_preorder, parents
from traceq.linter.source_loops import function_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.model.finding import Place
    from traceq.model.trace import Trace

_FUNCTION = ("file", "line", "function")
_CALLED = pl.coalesce(
    text("name").str.extract(r"^<built-in (?:function|method) (\w+)"),
    text("function"),
)
# What makes a tensor of a list without a call that a trace shows, and the dtype of
# NumPy that has its elements.
_CONSTRUCTORS = {
    "Tensor": "np.float32",
    "FloatTensor": "np.float32",
    "DoubleTensor": "np.float64",
    "HalfTensor": "np.float16",
    "LongTensor": "np.int64",
    "IntTensor": "np.int32",
    "BoolTensor": "bool",
}
_LOOPS = (ast.For, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_APART = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_MOST_TEXT = 50


class GapCause(NamedTuple):
    """Statements that may take long between two calls of a function."""

    kind: str
    """``list`` for a tensor that is made of one, ``loop`` for a loop in Python."""
    line: int
    text: str
    """Of a tensor's constructor, as it is written."""
    argument: str = ""
    dtype: str = ""
    """Of NumPy, as it is written, with the tensor's elements."""


def gap_lines(trace: Trace, place: Place, times: pl.DataFrame) -> pl.DataFrame:
    """Return for each time, ``start`` to ``end``, where the function of a place is.

    ``inside`` is the line of the call that it is in; ``before`` and ``after`` are those
    of the calls around it, ``called_before`` and ``called_after`` their names. Nothing
    is known without lines of calls.
    """
    calls = _calls_of(trace, place)
    ends = calls.select(
        before_call="call_line",
        called_before="called",
        until="end",
        began="ts",
        of="instance",
    )
    begins = calls.select(
        after_call="call_line", called_after="called", next="ts", of_next="instance"
    )
    instances = calls.select(since="since", instance="instance").unique().sort("since")
    return (
        times.with_row_index("row")
        .sort("start")
        .join_asof(instances, left_on="start", right_on="since")
        .join_asof(ends.sort("began"), left_on="start", right_on="began")
        .sort("end")
        .join_asof(
            begins.sort("next"), left_on="end", right_on="next", strategy="forward"
        )
        .with_columns(
            mine=pl.col("of") == pl.col("instance"),
            then=pl.col("of_next") == pl.col("instance"),
            within=pl.col("until") >= pl.col("end"),
        )
        .sort("row")
        .select(
            inside=pl.when("mine", "within").then("before_call"),
            before=pl.when("mine").then("before_call"),
            called_before=pl.when("mine").then("called_before").fill_null(""),
            after=pl.when("then").then("after_call"),
            called_after=pl.when("then").then("called_after").fill_null(""),
        )
    )


def _calls_of(trace: Trace, place: Place) -> pl.DataFrame:
    """Return what a function calls itself: line, name, times, and which run of it."""
    frames, ops = trace.frames, trace.ops
    here = pl.all_horizontal(
        pl.col(name).eq_missing(getattr(place, name)) for name in _FUNCTION
    )
    runs = frames.filter("own", here)
    columns = ("thread", "ts", "dur", "call_line", *_FUNCTION)
    threads = runs["thread"].unique().implode()
    first, last = runs["ts"].min(), runs.select(END.max()).item()
    near = pl.all_horizontal(
        pl.col("thread").is_in(threads), first < END, pl.col("ts") < last
    )
    rows = pl.concat(
        [
            frames.filter(near).select(*columns, called=_CALLED, own="own"),
            ops.filter(near & here).select(
                *columns,
                called=text("name").str.strip_prefix("aten::"),
                own=pl.lit(value=False),
            ),
        ]
    )
    tree = in_preorder(rows.with_columns(end=END))
    around = parents(tree["thread"], tree["end"])
    of = tree[around]
    is_here = of.select(pl.col("own") & here).to_series().fill_null(value=False)
    return (
        tree.with_columns(instance=around, since=of["ts"])
        .filter(is_here)
        .drop_nulls("call_line")
        .select("call_line", "called", "ts", "end", "instance", "since")
    )


def gap_causes(
    trace: Trace, place: Place, gap: Mapping[str, Any]
) -> list[GapCause] | None:
    """Return what the source has between two calls that may take long.

    The calls are as ``gap_lines`` has them: a function that begins, or ends, has none.
    None without the source, or where the calls are in no order there.
    """
    function = function_at(trace, place)
    if function is None:
        return None
    parts = _parts_of(function.node)
    before, after = gap["before"], gap["after"]
    first = _last_at(parts, before, gap["called_before"]) if before else -1
    last = _first_at(parts, after, gap["called_after"], first) if after else None
    if first is None or (after and last is None):
        return None
    between = parts[first + 1 : last]
    return [cause for cause in map(_cause, between) if cause is not None]


@lru_cache(maxsize=16)
def _parts_of(function: ast.AST) -> list[ast.AST]:
    """Return the calls and loops of a function, in the order in which they are done."""
    statements = getattr(function, "body", [])
    return [part for statement in statements for part in _in_order(statement)]


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, _APART):
        return
    children = [*ast.iter_child_nodes(node)]
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        children.sort(key=lambda child: child is not node.value)
    for child in children:
        yield from _in_order(child)
    if isinstance(node, (ast.Call, *_LOOPS, *_COMPREHENSIONS)):
        yield node


def _at(parts: list[ast.AST], line: int, name: str) -> list[int]:
    """Return which calls may be the one of a name at a line."""
    there = [
        number
        for number, part in enumerate(parts)
        if isinstance(part, ast.Call)
        and part.lineno <= line <= (part.end_lineno or part.lineno)
    ]
    named = [number for number in there if _name(parts[number]) == name]
    return named or there


def _last_at(parts: list[ast.AST], line: int, name: str) -> int | None:
    return max(_at(parts, line, name), default=None)


def _first_at(
    parts: list[ast.AST], line: int, name: str, first: int | None
) -> int | None:
    later = [at for at in _at(parts, line, name) if first is None or at > first]
    return min(later, default=None)


def _name(call: ast.AST) -> str:
    function = getattr(call, "func", None)
    return str(getattr(function, "attr", None) or getattr(function, "id", ""))


def _cause(part: ast.AST) -> GapCause | None:
    line = getattr(part, "lineno", 0)
    if isinstance(part, (*_LOOPS, *_COMPREHENSIONS)):
        return GapCause("loop", line, "")
    if not isinstance(part, ast.Call) or _name(part) not in _CONSTRUCTORS:
        return None
    if len(part.args) != 1 or isinstance(part.args[0], (ast.Constant, ast.Starred)):
        return None  # a size, not elements
    written, argument = ast.unparse(part), ast.unparse(part.args[0])
    if len(written) > _MOST_TEXT:
        written, argument = f"{ast.unparse(part.func)}(…)", "…"
    return GapCause("list", line, written, argument, _CONSTRUCTORS[_name(part)])
