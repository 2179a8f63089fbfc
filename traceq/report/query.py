"""Frames as text: what `traceq query` returns, and the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import polars as pl
from rich.table import Table
from rich.text import Text

from traceq.common.safe_text import plain_csv, plain_json, printable
from traceq.model.facts import FACTS
from traceq.model.schema import ANALYSES, TABLES
from traceq.report.base.columns import Column, fitted
from traceq.report.base.screen import PIPE
from traceq.report.base.text import bold, rendered

if TYPE_CHECKING:
    from traceq.model.schema import Dtype
    from traceq.model.schema import Table as Described

_TEXTS = (pl.String, pl.Categorical, pl.Enum)


def render_table(frame: pl.DataFrame, *, width: int | None, color: bool) -> str:
    """Return a frame as an aligned table, all rows of it, in lines that fit if may be.

    A column that was asked for is never left out, even if the lines grow too long.
    """
    columns = [
        Column(printable(name), number=dtype.is_numeric())
        for name, dtype in frame.schema.items()
    ]
    rows = [[_cell(value) for value in row] for row in frame.iter_rows()]
    lines, left_out = fitted(columns, rows, width)
    if left_out:
        lines, _ = fitted(columns, rows, None)
    return "\n".join([bold(lines[0], color=color), *lines[1:]]) + "\n"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        text = f"{value:.6g}"
        return f"{value:.0f}" if "e+" in text else text
    return printable(str(value))


def render_csv(frame: pl.DataFrame) -> str:
    """Return a frame as CSV; lists are written as JSON, nothing as a formula."""
    texts = [
        name
        for name, dtype in frame.schema.items()
        if dtype.is_nested() or dtype in _TEXTS
    ]
    flat = frame.with_columns(
        pl.Series(name, map(_csv_cell, frame[name].to_list()), dtype=pl.String)
        for name in texts
    )
    return flat.write_csv()


def _csv_cell(value: object) -> str | None:
    if value is None:
        return None
    return plain_csv(value if isinstance(value, str) else _json(value))


def render_json(frame: pl.DataFrame) -> str:
    """Return a frame as a list of objects."""
    content = _json(frame.to_dicts(), orjson.OPT_INDENT_2)
    return plain_json(content) + "\n"


def _json(value: object, option: int | None = None) -> str:
    # Values without a form in JSON, a decimal or a duration, are written as text.
    return orjson.dumps(value, default=str, option=option).decode()


def render_schema(tables: tuple[str, ...], *, width: int | None, color: bool) -> str:
    """Return the schema of the tables, column by column."""
    parts: list[Table | Text | str] = []
    for name in tables or (*TABLES, *ANALYSES, "facts"):
        if name == "facts":
            parts += [
                _heading(name, "Facts on the trace as a whole: trace.facts."),
                _facts(),
            ]
        else:
            parts += [_heading(name, _table(name).meaning), _columns(name)]
        parts.append("")
    return rendered(parts[:-1], width=width or PIPE, color=color)


def _table(name: str) -> Described:
    return TABLES[name] if name in TABLES else ANALYSES[name]


def _heading(name: str, meaning: str) -> Text:
    return Text.assemble((name, "bold"), f"  {meaning}")


def _columns(name: str) -> Table:
    table = _definitions()
    for column, definition in _table(name).columns.items():
        unit = f" ({definition.unit})" if definition.unit else ""
        table.add_row(column, type_name(definition.dtype) + unit, definition.meaning)
    return table


def _facts() -> Table:
    table = _definitions()
    for fact, (dtype, meaning) in FACTS.items():
        table.add_row(fact, dtype, meaning)
    return table


def _definitions() -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=18)
    table.add_column(width=22)
    table.add_column(overflow="fold")
    return table


def type_name(dtype: Dtype) -> str:
    """Return the name of a column's type, without its values."""
    name = str(dtype)
    return "Enum" if name.startswith("Enum") else name
