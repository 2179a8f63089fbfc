"""Memory snapshots as Markdown, for a pull request or a note."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.report.memory.content import content, overview
from traceq.report.summary.markdown import escaped

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from traceq.analysis.memory.summary import MemorySummary
    from traceq.report.summary.content import TextTable


def render(summaries: Sequence[MemorySummary]) -> str:
    """Return a section for one device, a table with a row each for several."""
    if len(summaries) != 1:
        return render_table(overview(summaries))
    words = content(summaries[0])
    lines = [f"### {escaped(words.title)}", ""]
    lines += [f"- **Incomplete**: {escaped(warning)}" for warning in words.warnings]
    lines += [f"- **{label}**: {escaped(text)}" for label, text in words.facts]
    for table in words.tables:
        lines += ["", *_table(table)]
    return "\n".join(lines) + "\n"


def render_table(table: TextTable) -> str:
    """Return one table."""
    return "\n".join(_table(table)) + "\n"


def _table(table: TextTable) -> list[str]:
    return [
        _line(escaped(column.title) for column in table.columns),
        _line("---:" if column.number else "---" for column in table.columns),
        *(_line(escaped(cell) for cell in row) for row in table.rows),
    ]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
