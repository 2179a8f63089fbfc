"""Markdown in which names stay text: a section, a table, a line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from traceq.common.safe_text import printable

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

# What a code host makes a link of, or a message to somebody: mentions, addresses,
# issues and commits. No escape stops that, only a code span does.
_LINKED = re.compile(
    r"@\w|://|www\.|(?:mailto|xmpp):|#\d|\bGH-\d"
    r"|\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,40}\b",
    re.IGNORECASE,
)
# Characters that are the same in a code span and outside of it.
_CODE = re.compile(r"[\w ./:()\[\],=+-]+")
# A bar would end a table's cell even in a code span.
_BETWEEN = re.compile(r"([\s|]+)")


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
    r"""Return a text as Markdown that shows it as it is, and links to nothing.

    >>> escaped("a_b of @ann")
    'a\\_b of `@ann`'
    """
    if not _LINKED.search(text):
        return _plain(text)
    return "".join(
        _code(word) if _LINKED.search(word) else _plain(word)
        for word in _BETWEEN.split(text)
    )


def _plain(text: str) -> str:
    return "".join(_ENTITIES.get(character, character) for character in text)


def code(text: str) -> str:
    r"""Return a text as a code span; one that could leave it, as plain text.

    >>> code("model.py:42 forward"), code("a|b")
    ('`model.py:42 forward`', 'a\\|b')
    """
    return f"`{text}`" if _CODE.fullmatch(text) else escaped(text)


def fenced(lines: list[str], language: str = "python") -> list[str]:
    """Return lines as a block of code, whatever backticks are in them."""
    longest = max((len(run) for run in re.findall("`+", "\n".join(lines))), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", *map(printable, lines), fence]


def _code(word: str) -> str:
    """Return a word as a code span, whatever backticks are in it."""
    longest = max(map(len, re.findall("`+", word)), default=0)
    fence = "`" * (longest + 1)
    blank = " " if longest else ""
    return f"{fence}{blank}{word}{blank}{fence}"
