"""Summaries for the terminal: a screen for one trace, a row each for several."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from traceq.report.columns import GAP, cells, fitted
from traceq.report.summary_content import TextTable, content, overview
from traceq.report.text import TIE, rendered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from traceq.analysis.summary import Summary

_WIDEST = 120
_PIPE = 100
_LABEL = 10
# A number and its unit stay on one line, and so do a step and its time.
_TIED = re.compile(r"(?<=\d) (?=(?:[nµm]?s|[KMGT]?i?B|[MGTP]?FLOP)\b|\d)")


def render(summaries: Sequence[Summary], *, width: int | None, color: bool) -> str:
    """Return the text of a screen so wide; without a width, one row stays one line."""
    if len(summaries) == 1:
        width = min(width or _PIPE, _WIDEST)
        return rendered(list(_screen(summaries[0], width)), width=width, color=color)
    table = overview(summaries)
    if width is None:
        lines, _ = fitted(table.columns, table.rows, None)
        return "\n".join(lines) + "\n"
    return rendered(list(_overview(table, width)), width=width, color=color)


def _screen(summary: Summary, width: int) -> Iterator[RenderableType]:
    words = content(summary)
    yield Text(words.title, style="bold", overflow="fold")
    facts = Table.grid(padding=(0, 1))
    facts.add_column(width=_LABEL, style="bold")
    facts.add_column(width=max(1, width - _LABEL - 1), overflow="fold")
    for warning in words.warnings:
        facts.add_row(Text("INCOMPLETE", style="red"), Text(warning, style="red"))
    for label, text in words.facts:
        facts.add_row(label, Text(_TIED.sub(TIE, text)))
    yield facts
    for table in words.tables:
        yield ""
        yield from _table(table, width)


def _overview(table: TextTable, width: int) -> Iterator[Text]:
    """Give names that leave no room beside them a line of their own: they are keys."""
    lines, _ = fitted(table.columns, table.rows, None)
    if max(map(cells, lines)) <= width:
        yield from _table(table, width)
        return
    numbers = TextTable(table.columns[1:], tuple(row[1:] for row in table.rows))
    title, *rows = _table(numbers, width - GAP)
    yield _indented(title)
    for name, *_ in table.rows:
        yield Text(name, overflow="fold")
        yield _indented(rows.pop(0))
    yield from rows


def _indented(line: Text) -> Text:
    return Text(" " * GAP, end="") + line


def _table(table: TextTable, width: int) -> Iterator[Text]:
    lines, left_out = fitted(table.columns, table.rows, width)
    yield Text(lines[0], style="bold")
    yield from map(Text, lines[1:])
    if left_out:
        yield Text(f"(no room for {', '.join(left_out)})", style="dim")
