"""GPU work that belongs to a part of the program, in forward and backward.

A part is an op with everything inside it, or an interval of a thread. Its backward runs
on another thread, in ops that reference their forward op.
"""

from __future__ import annotations

import re
from functools import reduce
from itertools import compress
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.pattern_texts import Lines, texts_of
from traceq.common.expressions import END, ascii_only, asof, constant, known, rows_where
from traceq.common.intervals import covered
from traceq.common.words import layer_names
from traceq.graph.nesting import INDEX, nearest, nearest_of, upwards

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from traceq.model.tables import Tables
    from traceq.model.trace import Trace

Row: TypeAlias = "dict[str, Any]"
"""A row of a frame, by its columns."""

NOTHING = pl.DataFrame()
"""A table without rows, for those who ask for rows only."""

_OVERLOAD = re.compile(r"[0-9A-Za-z_]+")
# Names up to which it is faster to compare with each than to look their numbers up.
_FEW = 4
# Names up to which Python looks for texts in them, rather than Polars for patterns.
_SOME = 5000
_SOURCE = ("file", "line", "function", "via")
_PLACE = ("module", *_SOURCE)
FUNCTION = r"^[A-Za-z_]\w*$"
"""Functions of autograd that Python defines: what they call, the program calls."""
# That of torch.compile, whose code the compiler wrote.
_COMPILED = ("CompiledFunction",)
WHATEVER_LIBRARY = pl.lit(None, pl.String).alias("via")
"""Instead of a library's function, for what is fixed at the user's line alone."""


class _Names(NamedTuple):
    """The names of a table's rows."""

    codes: pl.Series
    """For each row the number that stands for its name; none where it has none."""
    first: pl.Series
    """The first row of each name, and of those that have none."""
    code: list[int]
    """The numbers of those that there are, each once."""
    text: list[str]
    """The names that they stand for."""
    lines: Lines


@cached_per_trace
def _names(table: pl.DataFrame) -> _Names:
    # Some tables have text instead of categories.
    names = table["name"].cast(pl.Categorical)
    codes = names.to_physical()
    # It takes a third of the time of the distinct values themselves.
    first = codes.arg_unique()
    texts = names[first].cast(pl.String).to_list()
    pairs = zip(codes[first].to_list(), texts, strict=True)
    there = [(code, text) for code, text in pairs if text is not None]
    code, text = [code for code, _ in there], [text for _, text in there]
    return _Names(codes, first, code, text, Lines.of(text))


def first_rows(table: pl.DataFrame) -> pl.Series:
    """Return the first row of each name, where rows of one name are all the same."""
    return _names(table).first


@cached_per_trace
def plain_names(ops: pl.DataFrame) -> pl.DataFrame:
    """Return the distinct ``name`` of ops with the name without overload."""
    names = ops["name"][_names(ops).first]
    return pl.DataFrame({"name": names, "plain": plain(ops, names)})


def plain(ops: pl.DataFrame, names: pl.Series) -> pl.Series:
    """Return the names of some of these ops without overload, as text."""
    return _plain_by_code(ops)[names.to_physical()].alias("plain")


@cached_per_trace
def _plain_by_code(ops: pl.DataFrame) -> pl.Series:
    """Return names without overload, each at the number that stands for the name."""
    names = _names(ops)
    nothing = constant(None, 1 + max(names.code, default=0), pl.String)
    texts = [_without_overload(name) for name in names.text]
    return nothing.scatter(names.code, texts) if texts else nothing


def _without_overload(name: str) -> str:
    """Return the name of an op without its overload.

    >>> _without_overload("aten::add.Tensor"), _without_overload("model.py(3): f")
    ('aten::add', 'model.py(3): f')
    """
    op, dot, overload = name.rpartition(".")
    return op if dot and _OVERLOAD.fullmatch(overload) else name


@cached_per_trace
def _overloads(ops: pl.DataFrame) -> dict[str, list[int]]:
    """Return the numbers of names by what ops are called without overload."""
    by_name: dict[str, list[int]] = {}
    names = _names(ops)
    for code, name in zip(names.code, names.text, strict=True):
        by_name.setdefault(_without_overload(name), []).append(code)
    return by_name


@cached_per_trace
def called_by_its_like(trace: Trace) -> pl.Series:
    """Return which ops are called by one of the same name, as for wrapped tensors.

    So are those of a subclass of Tensor, and those that torch.func transforms.
    """
    names, around = trace.ops["name"].to_physical(), trace.ops["parent"]
    return known(names == names[around])


def has_named(ops: pl.DataFrame, names: Iterable[str]) -> bool:
    """Return whether any op is one of these, in any overload.

    It costs next to nothing: ask it before any work on ops that may not be there.
    """
    return not _overloads(ops).keys().isdisjoint(names)


def named(ops: pl.DataFrame, names: Iterable[str]) -> pl.Series:
    """Return for each op whether it is one of these, in any overload."""
    overloads = _overloads(ops)
    chosen = [code for plain in {*names} for code in overloads.get(plain, ())]
    return _is_one_of(_names(ops), chosen)


def has_like(table: pl.DataFrame, pattern: str) -> bool:
    """Return whether the name of any op or kernel matches a pattern."""
    return bool(_matching(_names(table), pattern))


def named_like(table: pl.DataFrame, pattern: str) -> pl.Series:
    """Return for each op or kernel whether its name matches a pattern."""
    names = _names(table)
    return _is_one_of(names, _matching(names, pattern))


def _is_one_of(names: _Names, chosen: list[int]) -> pl.Series:
    """Return which rows have one of these names; those without a name have none."""
    if not chosen:
        return constant(value=False, count=len(names.codes), dtype=pl.Boolean)
    if len(chosen) > _FEW:
        # Bytes are looked up in a third of the time of booleans.
        nothing = constant(0, 1 + max(names.code), pl.UInt8)
        matches = nothing.scatter(chosen, 1)[names.codes] == 1
    else:
        matches = reduce(or_, (names.codes == code for code in chosen))
    return known(matches) if len(names.first) > len(names.code) else matches


def _matching(names: _Names, pattern: str) -> list[int]:
    """Return the numbers of the names that match a pattern."""
    texts = texts_of(pattern) if len(names.code) <= _SOME else None
    if texts is None:
        code, text = names.code, names.text
    else:
        # Most patterns are of what few traces have.
        lines = texts.among(names.lines)
        code = [names.code[line] for line in lines]
        if texts.exact or not code:
            return code
        text = [names.text[line] for line in lines]
    matches = pl.Series(text, dtype=pl.String).str.contains(ascii_only(pattern))
    return [*compress(code, matches)]


@cached_per_trace
def outermost_ops(trace: Tables, names: tuple[str, ...] | None = None) -> pl.Series:
    """Return for each op the outermost op around it, or itself.

    With names it is the outermost op of these names; none for ops outside of all such.
    """
    parent = trace.ops["parent"]
    if names is None:
        return nearest(parent, parent.is_null())
    if not has_named(trace.ops, names):
        return nobody(trace)
    chosen = trace.ops["id"].filter(named(trace.ops, names))
    owner = inside(trace, chosen)
    nested = owner[parent[chosen]].is_not_null()
    return inside(trace, chosen.filter(~nested)) if nested.any() else owner


@cached_per_trace
def called_ops(trace: Tables) -> pl.Series:
    """Return for each op the outermost op around it that the program calls, or itself.

    What a function of autograd calls that Python defines, the program calls: it is not
    a part of that function's op.
    """
    ops, parent = trace.ops, trace.ops["parent"]
    functions = named_like(ops, FUNCTION) & known(ops["phase"] == "forward")
    functions &= ~named(ops, _COMPILED)
    opened = functions & parent.is_null()
    if not opened.any():
        return outermost_ops(trace)
    while (more := functions & known(opened[parent]) & ~opened).any():
        opened |= more
    return nearest(parent, opened | parent.is_null() | known(opened[parent]))


def nobody(trace: Tables) -> pl.Series:
    """Return a null for each op."""
    return pl.Series([None], dtype=INDEX).new_from_index(0, trace.ops.height)


def inside(trace: Tables, chosen: pl.Series) -> pl.Series:
    """Return for each op itself, if chosen, or its nearest chosen ancestor."""
    return nearest_of(_upwards(trace.ops), chosen)


@cached_per_trace
def _upwards(ops: pl.DataFrame) -> pl.Series:
    """Return the parent of each op, for repeated lookups."""
    return upwards(ops["parent"])


def during(trace: Trace, spans: pl.DataFrame) -> pl.Series:
    """Return for each op the ``owner`` of the span it starts in.

    Spans are ``owner``, ``thread``, ``start`` and ``end``, and do not overlap.
    """
    if not spans.height:
        return nobody(trace)
    ops = trace.ops[["id", "thread", "ts"]]
    # A span may be a moment of a long recording: only what is near is looked at.
    near = ops["ts"].is_between(spans["start"].min(), spans["end"].max())
    near &= ops["thread"].is_in(spans["thread"].unique().implode())
    started = asof(ops.filter(near), spans, "ts", "start", by="thread")
    started = started.filter(pl.col("ts") <= pl.col("end"))
    return nobody(trace).scatter(started["id"], started["owner"].cast(INDEX))


def owned(trace: Trace, kernels: pl.DataFrame, owners: pl.Series) -> pl.DataFrame:
    """Return the kernels of ops that have an owner, and of their backward.

    The owner is added as ``owner``, and in ``back`` whether it ran in the backward.
    """
    forward = trace.ops["forward"][kernels["op"]]
    of_forward, of_op = owners[forward], owners[kernels["op"]]
    # Ids are 0 or more: what is compared is known where it is.
    owner = of_forward.zip_with(of_forward >= 0, of_op)
    has_owner = owner >= 0
    back = known(forward >= 0).filter(has_owner).alias("back")
    return kernels.filter(has_owner).hstack(
        [owner.filter(has_owner).alias("owner"), back]
    )


def busy(of: pl.Expr | None = None) -> pl.Expr:
    """Return the busy time of kernels, each instant counted once; sort them by ts."""
    start, end = pl.col("ts"), END
    if of is not None:
        start, end = start.filter(of), end.filter(of)
    return covered(start, end).sum()


def at_owner(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return kernels that have an ``owner`` with its place instead of their own."""
    source = trace.ops[[*_PLACE]][kernels["owner"]]
    return kernels.with_columns(source.get_columns())


def by_place(
    kernels: pl.DataFrame, keys: Sequence[str], **more: pl.Expr
) -> pl.DataFrame:
    """Group kernels that have an ``owner`` by ``keys`` and place, all layers together.

    A group has the place, ``calls`` (how many owners), ``modules`` and the first
    ``module``, ``ops`` (the owners) and ``kernels`` (ids), ``gpu_ns``, and ``more``.
    """
    owner, module = pl.col("owner").drop_nulls(), pl.col("module")
    totals = {
        "calls": owner.n_unique(),
        # As text once for each, not for each kernel: a name may be long.
        "modules": module.unique(maintain_order=True).cast(pl.String),
        "module": module.drop_nulls().first().cast(pl.String),
        "ops": owner.unique(maintain_order=True),
        "kernels": pl.col("id"),
        "gpu_ns": busy(),
    }
    # Of dozens of columns some are asked for: only these are sorted.
    needed = (
        column
        for expression in more.values()
        for column in expression.meta.root_names()
    )
    columns = {*keys, *_PLACE, *needed, "owner", "id", "ts", "dur"}
    return (
        kernels[[*columns]]
        .sort("ts", "id")
        .group_by(*keys, *same_place(), maintain_order=True)
        .agg(**totals | more)
    )


def host_work(trace: Trace, owners: pl.Series) -> pl.DataFrame:
    """Return the host's spans in the ops that have an owner, one row per owner.

    ``start`` and ``end`` are from the first op of the forward to the last,
    ``went_back`` is a list of when it was in their backward.
    """
    times, back = trace.ops[["ts", "dur"]], owners[trace.ops["forward"]]
    returned = back.is_not_null()
    rows = rows_where(owners.is_not_null() & ~returned)
    forward = (
        times[rows]
        .with_columns(owner=owners[rows])
        .group_by("owner")
        .agg(start=pl.col("ts").min(), end=END.max())
    )
    rows = rows_where(returned & trace.ops["parent"].is_null())
    backward = (
        times[rows]
        .with_columns(owner=back[rows])
        .group_by("owner")
        .agg(went_back=pl.struct(start="ts", end=END))
    )
    return forward.join(backward, on="owner", how="left")


def host_totals() -> dict[str, pl.Expr]:
    """Return the aggregations for ``by_place`` of kernels joined with ``host_work``.

    A group has ``spans`` and ``backward_spans``, and the number of kernels that each
    pass launches, ``forward_launches`` and ``backward_launches``.
    """
    each = pl.col("owner").is_first_distinct()
    return {
        "spans": pl.struct("start", "end").filter(each),
        "backward_spans": pl.col("went_back").filter(each).explode().drop_nulls(),
        "forward_launches": (~pl.col("back")).sum(),
        "backward_launches": pl.col("back").sum(),
    }


def together(rows: Iterable[Row], *keys: str) -> list[list[Row]]:
    """Return the rows of ``by_place`` grouped by place and ``keys``."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        same = tuple(row[key] for key in (*_SOURCE, "layers", *keys))
        groups.setdefault(same, []).append(row)
    return list(groups.values())


def same_place() -> list[pl.Expr]:
    """Return the grouping keys that merge all layers of a model.

    It is the user's line, with the library's function that it calls; where neither is
    known, the modules without their numbers.
    """
    # Only those are asked for their name: as text it takes its length for each row.
    alone = pl.when(pl.col("file").is_null() & pl.col("via").is_null())
    return [
        *map(pl.col, _SOURCE),
        layer_names(alone.then(pl.col("module"))).alias("layers"),
    ]
