"""Lines of findings: a rule names a function, its evidence the lines."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import polars as pl

from traceq.common.expressions import asof, known
from traceq.common.words import MODULE_LEVEL
from traceq.graph.source.control_flow import read_program

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from traceq.graph.source.control_flow import Program
    from traceq.model.finding import Finding, Place
    from traceq.model.trace import Trace


def with_line(finding: Finding, trace: Trace) -> Finding:
    """Return a finding at the line of its function that costs most, where it is known.

    The lines are those of the kernels that it was seen by, else of its runtime calls,
    else of its ops. What costs most may have no known line: then the place stays.
    """
    place = finding.place
    if not place.file or place.exact:
        return finding
    tables = (trace.kernels, trace.runtime, trace.ops)
    # The profiler itself records none: there is nothing to look up then.
    if all(table["call_line"].null_count() == table.height for table in tables):
        return with_function(finding, trace)
    seen_by = (finding.kernels, finding.calls, finding.ops)
    for table, ids in zip(tables, seen_by, strict=True):
        lines = _lines(table, ids, place)
        if lines and lines[0][0] is not None:
            return replace(finding, place=_at_most(place, lines))
        if lines:
            break
    return with_function(finding, trace)


def with_function(finding: Finding, trace: Trace) -> Finding:
    """Return a finding with the last line of its function, if the source is there."""
    place = finding.place
    sources = trace.rank.sources if trace.rank else {}
    if place.function == MODULE_LEVEL and place.file and not place.exact:
        return replace(finding, place=_statement(finding, trace, sources))
    if place.exact or not place.file or place.file not in sources:
        return finding
    function = program_of(sources[place.file]).find(place.function or "", place.line)
    ends = function.ends if function else None
    return replace(finding, place=replace(place, ends=ends))


def _statement(finding: Finding, trace: Trace, sources: Mapping[str, str]) -> Place:
    """Return the place of a finding among a file's own statements, never all of them.

    That is the line that costs most, of those that are known; else the lines between
    those that are known to run before and after, the loop around all that are known to
    run, or the one around the line at which the recording started.
    """
    place, tables = finding.place, (trace.kernels, trace.runtime, trace.ops)
    seen_by = (finding.kernels, finding.calls, finding.ops)
    for table, ids in zip(tables, seen_by, strict=True):
        lines = [line for line in _lines(table, ids, place) if line[0] is not None]
        if lines:
            return _at_most(place, lines)
    if between := _between(finding, trace):
        first, last = between
        return replace(place, line=first, ends=last if last > first else None)
    started = place.line if (place.line or 0) > 1 else None
    run = sorted({line for table in tables for line in _run(table, place)})
    run = run or ([started] if started else [])
    if not run:
        return replace(place, line=None)
    first, last = run[0], run[-1]
    source = sources.get(place.file or "")
    function = program_of(source).find(MODULE_LEVEL, None) if source else None
    first, last = (function and function.loop(first, last)) or (first, last)
    return replace(place, line=first, ends=last if last > first else None)


def _between(finding: Finding, trace: Trace) -> tuple[int, int] | None:
    """Return the known lines before and after all ops of a finding, if in this order.

    They are not where a loop begins again in between.
    """
    ops, place = trace.ops, finding.place
    own = pl.Series([*finding.ops], dtype=pl.UInt32)
    here = (known(ops[name] == getattr(place, name)) for name in ("file", "function"))
    lines = ops.filter(*here).select("thread", "ts", "call_line").drop_nulls()
    moments = ops[["thread", "ts"]][own]
    lines_before, lines_after = (
        asof(moments, lines, "ts", "ts", by="thread", strategy=way)["call_line"]
        for way in ("backward", "forward")
    )
    first, last = lines_before.min(), lines_after.max()
    ordered = known(lines_before <= lines_after).all()
    if not ordered or not isinstance(first, int) or not isinstance(last, int):
        return None
    return first, last


def _run(table: pl.DataFrame, place: Place) -> list[int]:
    """Return the lines that a place's function is known to run in a table."""
    rows = table.filter(
        *(table[name].eq_missing(getattr(place, name)) for name in ("file", "function"))
    )
    return rows["call_line"].drop_nulls().unique().to_list()


@lru_cache(maxsize=64)
def program_of(source: str) -> Program:
    """Return the functions of a source, which is parsed once."""
    return read_program(source)


def _lines(
    table: pl.DataFrame, ids: Collection[int], place: Place
) -> list[tuple[int | None, int]]:
    """Return the lines of a function in these rows, what takes longest first."""
    if not ids or not table.height:
        return []
    # An id is the row of its table.
    rows = pl.Series([*ids], dtype=pl.UInt32)
    for column in ("file", "line", "function"):
        values, value = table[column][rows], getattr(place, column)
        here = values.is_null() if value is None else known(values == value)
        rows = rows if here.all() else rows.filter(here)
    timed = table[["call_line", "dur"]][rows]
    by_line = timed.group_by("call_line").agg(pl.col("dur").sum())
    return sorted(by_line.rows(), key=_costliest_first)


def _costliest_first(line: tuple[int | None, int]) -> tuple[int, int]:
    # Of equally long ones, those without a known line come first.
    return -line[1], line[0] or 0


def _at_most(place: Place, lines: list[tuple[int | None, int]]) -> Place:
    others = sum(one is not None for one, _ in lines[1:])
    return replace(
        place, line=lines[0][0], line_is="call", begins=place.line, other_lines=others
    )
