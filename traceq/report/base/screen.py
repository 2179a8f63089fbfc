"""A screen of the terminal: a title, facts with their labels, and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.report.base.columns import fitted
from traceq.report.base.text import tied

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType
    from rich.text import Text

    from traceq.report.base.content import Content, TextTable

WIDEST = 120
PIPE = 100
_LABEL = 10


def line_width(width: int | None) -> int:
    """Return the line width: the terminal's, up to a limit; for a pipe, 100."""
    return min(width or PIPE, WIDEST)


def screen(words: Content, width: int) -> Iterator[RenderableType]:
    """Yield the parts of a screen of this width."""
    # Only who prints tables waits for what draws them.
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    yield Text(words.title, style="bold", overflow="fold")
    label_width = max([_LABEL, *(len(label) for label, _ in words.facts)])
    facts = Table.grid(padding=(0, 1))
    facts.add_column(width=label_width, style="bold")
    facts.add_column(width=max(1, width - label_width - 1), overflow="fold")
    for warning in words.warnings:
        facts.add_row(Text("INCOMPLETE", style="red"), Text(warning, style="red"))
    for label, text in words.facts:
        facts.add_row(label, Text(tied(text)))
    yield facts
    for table in words.tables:
        yield ""
        yield from table_lines(table, width)


def table_lines(table: TextTable, width: int) -> Iterator[Text]:
    """Yield the lines of a table, and which columns there is no room for."""
    from rich.text import Text  # noqa: PLC0415 - as above

    lines, left_out = fitted(table.columns, table.rows, width)
    yield Text(lines[0], style="bold")
    yield from map(Text, lines[1:])
    if left_out:
        yield Text(f"(no room for {', '.join(left_out)})", style="dim")
