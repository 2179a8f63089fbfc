"""Summaries as Markdown, for a pull request or a note."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.report.summary.content import TextTable, content, overview

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from traceq.analysis.summary import Summary

# A name from a trace must stay text: no tag, no cell border, no formatting.
_ENTITIES = {
    "\\": "\\\\",
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    "|": "\\|",
    "`": "\\`",
    "*": "\\*",
}
_ENTITIES |= {"_": "\\_", "[": "\\[", "]": "\\]", "#": "\\#"}


def render(summaries: Sequence[Summary]) -> str:
    """Return a section for one trace, a table with a row each for several."""
    if len(summaries) != 1:
        return "\n".join(_table(overview(summaries))) + "\n"
    words = content(summaries[0])
    lines = [f"### {escaped(words.title)}", ""]
    lines += [f"- **Incomplete**: {escaped(warning)}" for warning in words.warnings]
    lines += [f"- **{label}**: {escaped(text)}" for label, text in words.facts]
    for table in words.tables:
        lines += ["", *_table(table)]
    return "\n".join(lines) + "\n"


def _table(table: TextTable) -> list[str]:
    return [
        _line(escaped(column.title) for column in table.columns),
        _line("---:" if column.number else "---" for column in table.columns),
        *(_line(escaped(cell) for cell in row) for row in table.rows),
    ]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def escaped(text: str) -> str:
    """Return a text as Markdown that shows it as it is."""
    return "".join(_ENTITIES.get(character, character) for character in text)
