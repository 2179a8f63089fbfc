"""Column layout: division of the screen's width, and truncation of long texts.

Half a number is worse than half a name: numbers keep their width, texts are truncated,
each column in its own way, and a column without any room is omitted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GAP = 2
_MORE = "…"
_NARROWEST = 8
# Where texts would get less than this, columns that can be spared go first.
_EASY = 16


class Column(Struct, frozen=True):
    """One column of a table: its title, and what it does in a narrow place."""

    title: str
    number: bool = False
    weight: int = 1
    """Share of the width left by the numbers that it may claim."""
    cut: Callable[[str, int], str] | None = None
    """Function that truncates its texts; without one, at their end."""
    spare: bool = False
    """True if the column is dropped first where room is scarce."""
    short: bool = False
    """True if its texts are a word or two, which are never truncated."""

    @property
    def whole(self) -> bool:
        """True if its cells keep their width."""
        return self.number or self.short


def cells(text: str) -> int:
    """Return the width of a text on a terminal; some characters take two cells."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - few texts need it

    return cell_len(text)


def cut_end(text: str, width: int) -> str:
    """Keep the beginning.

    >>> cut_end("aten::convolution", 9)
    'aten::co…'
    """
    return text[: max(0, width - 1)] + _MORE


def cut_middle(text: str, width: int) -> str:
    """Keep both ends: names that begin alike often end differently.

    >>> cut_middle("aten::convolution_backward", 15)
    'aten::c…ackward'
    """
    tail = (width - 1) // 2
    return text[: max(0, width - 1 - tail)] + _MORE + text[len(text) - tail :]


def cut_module(text: str, width: int) -> str:
    """Keep the names at the end of a module's path whole, as many as there is room for.

    >>> cut_module("LM_0/Block_3/Attention_3/RMSNorm_7", 25)
    '…/Attention_3/RMSNorm_7'
    >>> cut_module("LM_0/Block_3/MultiheadAttention_3", 12)
    'Multih…ion_3'
    """
    parts = text.split("/")
    shorter = (f"{_MORE}/{'/'.join(parts[at:])}" for at in range(1, len(parts)))
    fits = next((name for name in shorter if len(name) <= width), parts[-1])
    return fits if len(fits) <= width else cut_middle(fits, width)


def cut_list(text: str, width: int) -> str:
    """Keep what comes before a comma or a space, and so no half of a number.

    >>> cut_list("[8,1024] [1024,64]", 12), cut_list("[8,1024] [1024,64]", 7)
    ('[8,1024] …', '[8,…')
    """
    ends = [match.end() for match in re.finditer("[ ,]", text)]
    return text[: max((end for end in ends if end < width), default=0)] + _MORE


def cut_place(text: str, width: int) -> str:
    """Keep the file's name and the line before the function and the folder.

    A function that is known without the line of the call stands before its file.

    >>> cut_place("src/model.py:42 forward", 15), cut_place("src/model.py:42", 12)
    ('src/model.py:42', '…model.py:42')
    >>> cut_place("forward (src/model.py:40)", 22), cut_place("run (src/m.py:4)", 8)
    ('forward (model.py:40)', '(m.py:4)')
    >>> cut_place("forward (src/model.py:40)", 12)
    '(…del.py:40)'
    """
    before, _, last = text.rpartition(" ")
    if text.endswith(")"):
        name = last.strip("()").rpartition("/")[2]
        shorter = (f"{before} ({name})", f"({name})")
        cut = f"({_MORE}{name[len(name) - max(0, width - 3) :]})"
        return next((item for item in shorter if len(item) <= width), cut)
    file = before or text
    return file if len(file) <= width else _MORE + file[len(file) - width + 1 :]


def fitted(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None
) -> tuple[list[str], list[str]]:
    """Return a table's lines, its titles first, and the titles that found no room.

    Without a ``width`` every column takes what it needs.
    """
    wanted = [
        max([cells(column.title), *(cells(row[at]) for row in rows)])
        for at, column in enumerate(columns)
    ]
    shown_columns = list(range(len(columns)))
    widths = wanted
    if width is not None:
        shown_columns = _columns_that_fit(columns, wanted, width)
        widths = _widths(columns, wanted, shown_columns, width)
    lines = [
        _line(
            [columns[at] for at in shown_columns],
            [row[at] for at in shown_columns],
            widths,
        )
        for row in ([column.title for column in columns], *rows)
    ]
    left_out = [
        column.title
        for at, column in enumerate(columns)
        if at not in shown_columns and not column.spare
    ]
    return lines, left_out


def _columns_that_fit(
    columns: Sequence[Column], wanted: list[int], width: int
) -> list[int]:
    """Choose the columns for which there is room."""
    remaining = list(range(len(columns)))
    for at in reversed(range(len(columns))):
        if columns[at].spare and sum(_least(columns, wanted, remaining, _EASY)) > width:
            remaining.remove(at)
    # The first column says what a row is about, and stays.
    while (
        len(remaining) > 1
        and sum(_least(columns, wanted, remaining, _NARROWEST)) > width
    ):
        remaining.pop()
    return remaining


def _least(
    columns: Sequence[Column], wanted: list[int], remaining: list[int], narrow: int
) -> list[int]:
    """Return the minimum width of each column, with the gap before it."""
    return [
        (GAP if at else 0)
        + (
            wanted[at]
            if columns[at].whole
            else min(wanted[at], max(narrow, cells(columns[at].title)))
        )
        for at in remaining
    ]


def _widths(
    columns: Sequence[Column], wanted: list[int], remaining: list[int], width: int
) -> list[int]:
    """Give every column what it needs, and texts their shares of what is left."""
    least = _least(columns, wanted, remaining, _NARROWEST)
    widths = {
        at: need - (GAP if at else 0) for at, need in zip(remaining, least, strict=True)
    }
    room = max(0, width - sum(least))
    # Whoever asks for the least for its weight comes first and leaves the rest.
    texts = sorted(
        (at for at in remaining if not columns[at].whole),
        key=lambda at: (wanted[at] - widths[at]) / columns[at].weight,
    )
    for done, at in enumerate(texts):
        weights = sum(columns[other].weight for other in texts[done:])
        more = min(wanted[at] - widths[at], room * columns[at].weight // weights)
        widths[at] += more
        room -= more
    return [widths[at] for at in remaining]


def _line(columns: list[Column], row: list[str], widths: list[int]) -> str:
    padded = []
    for column, cell, width in zip(columns, row, widths, strict=True):
        text = _shortened(cell, width, column.cut or cut_end)
        fill = " " * (width - cells(text))
        padded.append(fill + text if column.number else text + fill)
    return (" " * GAP).join(padded).rstrip()


def _shortened(text: str, width: int, cut: Callable[[str, int], str]) -> str:
    """Cut a text to this many cells of a terminal."""
    if cells(text) <= width:
        return text
    for room in range(width, 0, -1):
        short = cut(text, room)
        if cells(short) <= width:
            return short
    return ""
