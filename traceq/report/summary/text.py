"""Summaries for the terminal: a screen for one trace, a row each for several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from traceq.report.base.columns import GAP, cells, fitted
from traceq.report.base.content import TextTable
from traceq.report.base.screen import PIPE, WIDEST, screen, table_lines
from traceq.report.base.text import rendered
from traceq.report.summary.content import content
from traceq.report.summary.overview import overview

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from traceq.analysis.summary import Summary


def render(summaries: Sequence[Summary], *, width: int | None, color: bool) -> str:
    """Return the text of a screen; without a width, one row stays one line."""
    if len(summaries) == 1:
        width = min(width or PIPE, WIDEST)
        return rendered(list(_screen(summaries[0], width)), width=width, color=color)
    table = overview(summaries)
    if width is None:
        lines, _ = fitted(table.columns, table.rows, None)
        return "\n".join(lines) + "\n"
    return rendered(list(_overview(table, width)), width=width, color=color)


def _screen(summary: Summary, width: int) -> Iterator[RenderableType]:
    yield from screen(content(summary), width)


def _overview(table: TextTable, width: int) -> Iterator[Text]:
    """Give names that leave no room for the numbers a line of their own."""
    lines, _ = fitted(table.columns, table.rows, None)
    if max(map(cells, lines)) <= width:
        yield from table_lines(table, width)
        return
    numbers = TextTable(table.columns[1:], tuple(row[1:] for row in table.rows))
    title, *rows = table_lines(numbers, width - GAP)
    yield Text(table.columns[0].title)
    yield _indented(title)
    for name, *_ in table.rows:
        yield Text(name, overflow="fold")
        yield _indented(rows.pop(0))
    yield from rows


def _indented(line: Text) -> Text:
    return Text(" " * GAP, end="") + line
