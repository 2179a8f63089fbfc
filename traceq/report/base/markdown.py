"""Markdown in which names stay text: a section, a table, a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceq.report.base.content import Content, TextTable

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


def section(words: Content) -> str:
    """Return a title, the facts as a list, and the tables."""
    lines = [f"### {escaped(words.title)}", ""]
    lines += [f"- **Incomplete**: {escaped(warning)}" for warning in words.warnings]
    lines += [f"- **{label}**: {escaped(text)}" for label, text in words.facts]
    for part in words.tables:
        lines += ["", *_lines(part)]
    return "\n".join(lines) + "\n"


def table(content: TextTable) -> str:
    """Return one table."""
    return "\n".join(_lines(content)) + "\n"


def _lines(table: TextTable) -> list[str]:
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
