"""Source lines written into the events of a trace, for use without the source."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from traceq.common.expressions import text

if TYPE_CHECKING:
    from traceq.formats.sanitize.paths import Paths
    from traceq.formats.sanitize.trace import Written

_OPERATORS = ("cpu_op", "Operator")
_KEY = ("name", "ts")
_PLACE = ("file", "line", "function", "module")


def with_lines(written: Written, bare: pl.DataFrame, lines: pl.DataFrame) -> Written:
    """Return a trace whose ops have a caller where only the source told their line.

    ``bare`` are its ops without the lines of the source, ``lines`` the same with them.
    """
    # A backward op has the line of its forward, unless compiled code runs all of it.
    forward = lines["call_line"].gather(lines["forward"])
    alone = lines["forward"].is_not_null() & lines["call_line"].ne_missing(forward)
    alone &= bare["call_line"].is_null()
    moved = pl.any_horizontal(
        alone, *(bare[key].ne_missing(lines[key]) for key in _PLACE)
    )
    rows = lines.with_columns(moved=moved).filter(
        pl.col("call_line").is_not_null(),
        pl.col("moved") | (bare["call_line"].is_null() & pl.col("forward").is_null()),
    )
    if not rows.height:
        return written
    events = written.events
    is_op = pl.col("category").is_in(_OPERATORS)
    start = events.filter(is_op)["ts"].min() - lines["ts"].min()  # type: ignore[operator]
    callers = rows.select(
        text("name"),
        pl.col("ts") + start,
        _caller(rows, written.paths).alias("caller"),
    ).unique(_KEY, keep="none")
    joined = events.join(callers, on=_KEY, how="left", maintain_order="left")
    key = pl.concat_str(pl.lit('"caller": '), "caller", pl.lit(', "pid"'))
    changed = pl.col("text").str.replace('"pid"', key, literal=True)
    rewritten = pl.when(is_op & pl.col("caller").is_not_null()).then(changed)
    return replace(
        written,
        events=joined.with_columns(text=pl.coalesce(rewritten, "text")).drop("caller"),
    )


def _caller(ops: pl.DataFrame, paths: Paths) -> pl.Series:
    """Return the callers as JSON, with paths as they are shown."""
    # An op of compiled code is in another function than the Python calls around it.
    function = pl.when("moved").then(
        pl.format("{}@{}@{}", text("function"), _or_empty("line"), _or_empty("module"))
    )
    lines = ops.select(
        text("file"), "call_line", pl.coalesce(function, text("function"))
    ).iter_rows()
    return pl.Series(
        [
            json.dumps(paths.frame(f"{file}({line}): {function}"))
            for file, line, function in lines
        ],
        dtype=pl.String,
    )


def _or_empty(column: str) -> pl.Expr:
    return text(column).fill_null("")
