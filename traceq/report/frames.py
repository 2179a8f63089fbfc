"""Frames as text: what `traceq query` returns, and the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import polars as pl
from rich.table import Table
from rich.text import Text

from traceq.model.facts import FACTS
from traceq.model.schema import TABLES
from traceq.report.text import printable, rendered

if TYPE_CHECKING:
    from traceq.model.schema import Dtype

_GAP = 2
_NARROWEST = 8


def render_table(frame: pl.DataFrame, *, width: int, color: bool) -> str:
    """Return a frame as an aligned table, all rows of it."""
    names = [printable(name) for name in frame.columns]
    rows = [[_cell(value) for value in row] for row in frame.iter_rows()]
    numbers = [dtype.is_numeric() for dtype in frame.dtypes]
    wanted = [
        max(len(name), *(len(row[at]) for row in rows), 0)
        for at, name in enumerate(names)
    ]
    widths = _fitting(wanted, numbers, width - _GAP * (len(names) - 1))
    table = Table(
        box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold"
    )
    for name, number, column in zip(names, numbers, widths, strict=True):
        table.add_column(
            Text(_shortened(name, column)),
            justify="right" if number else "left",
            width=column,
            no_wrap=True,
        )
    for row in rows:
        cells = zip(row, widths, strict=True)
        table.add_row(*(Text(_shortened(cell, column)) for cell, column in cells))
    needed = sum(widths) + _GAP * len(widths)
    return rendered([table], width=max(width, needed), color=color)


def _fitting(wanted: list[int], numbers: list[bool], room: int) -> list[int]:
    """Give columns their widths: texts share what the numbers leave.

    Half a number is worse than half a name, so only texts give way.
    """
    room -= sum(width for width, number in zip(wanted, numbers, strict=True) if number)
    texts = sorted(
        (at for at, number in enumerate(numbers) if not number), key=wanted.__getitem__
    )
    widths = list(wanted)
    for done, at in enumerate(texts):
        share = max(_NARROWEST, room // (len(texts) - done))
        widths[at] = min(wanted[at], share)
        room -= widths[at]
    return widths


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return printable(str(value))


def render_csv(frame: pl.DataFrame) -> str:
    """Return a frame as CSV; lists are written as JSON."""
    nested = [name for name, dtype in frame.schema.items() if dtype.is_nested()]
    flat = frame.with_columns(
        pl.Series(
            name,
            [
                None if value is None else orjson.dumps(value).decode()
                for value in frame[name].to_list()
            ],
            dtype=pl.String,
        )
        for name in nested
    )
    return flat.write_csv()


def render_json(frame: pl.DataFrame) -> str:
    """Return a frame as a list of objects."""
    return orjson.dumps(frame.to_dicts(), option=orjson.OPT_INDENT_2).decode() + "\n"


def render_schema(tables: tuple[str, ...], *, width: int, color: bool) -> str:
    """Return what is in the tables, column by column."""
    parts: list[Table | Text | str] = []
    for name in tables or (*TABLES, "facts"):
        if name == "facts":
            parts += [
                _heading(name, "What a trace says about itself: trace.facts."),
                _facts(),
            ]
        else:
            parts += [_heading(name, TABLES[name].meaning), _columns(name)]
        parts.append("")
    return rendered(parts[:-1], width=width, color=color)


def _heading(name: str, meaning: str) -> Text:
    return Text.assemble((name, "bold"), f"  {meaning}")


def _columns(name: str) -> Table:
    table = _definitions()
    for column, definition in TABLES[name].columns.items():
        unit = f" ({definition.unit})" if definition.unit else ""
        table.add_row(column, _type_name(definition.dtype) + unit, definition.meaning)
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


def _type_name(dtype: Dtype) -> str:
    name = str(dtype)
    return "Enum" if name.startswith("Enum") else name
