"""Summaries for the terminal: a screen for one trace, a row each for several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from traceq.report.summary_content import TextTable, content, overview
from traceq.report.text import rendered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from traceq.analysis.summary import Summary

_WIDEST = 120
_LABEL = 10


def render(summaries: Sequence[Summary], *, width: int, color: bool) -> str:
    """Return the text of a screen ``width`` columns wide."""
    width = min(width, _WIDEST)
    if len(summaries) == 1:
        return rendered(list(_screen(summaries[0], width)), width=width, color=color)
    return rendered([_table(overview(summaries), None)], width=width, color=color)


def _screen(summary: Summary, width: int) -> Iterator[RenderableType]:
    words = content(summary)
    yield Text(words.title, style="bold")
    facts = Table.grid(padding=(0, 1))
    facts.add_column(width=_LABEL, style="bold")
    facts.add_column(width=max(1, width - _LABEL - 2), overflow="fold")
    for warning in words.warnings:
        facts.add_row(Text("INCOMPLETE", style="red"), Text(warning, style="red"))
    for label, text in words.facts:
        facts.add_row(label, Text(text))
    yield facts
    for table in words.tables:
        yield ""
        yield _table(table, width)


def _table(table: TextTable, width: int | None) -> Table:
    stretched = any(column.ratio for column in table.columns)
    shown = Table(
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        width=width if stretched else None,
        header_style="bold",
    )
    for column in table.columns:
        shown.add_column(
            Text(column.title),
            justify="right" if column.number else "left",
            no_wrap=column.number or column.ratio > 0,
            overflow="ellipsis" if column.ratio else "fold",
            ratio=column.ratio or None,
        )
    for row in table.rows:
        shown.add_row(*(Text(cell) for cell in row))
    return shown
