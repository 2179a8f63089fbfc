"""Literal texts that a name pattern matches.

Compiling a regular expression takes several times as long as searching for literal
texts in the names of a trace, and most patterns match only a few literal texts.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cache
from itertools import accumulate, islice, product
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# More than these are not looked for one by one.
_MOST = 40
_OPTIONAL = re.compile(r"(?<!\\)([\w:])\?")
_GROUP = re.compile(r"(?<!\\)\(((?:[^()?*+{\\]|\\[.()])*)\)(\??)(?![*+{])")
_TEXT = re.compile(r"(\^?)((?:[\w :#,/-]|\\[.()])+)(\$?)")
# Text that a name must contain for the rest to match, without optional characters.
_FIRST_TEXT = re.compile(r"(\^?)(?:\\b)?((?:(?:[\w :#,/-]|\\[.()])(?![*?{]))+)()")
# Characters of no script: each stands for a group of a pattern.
_FIRST_GROUP = 0xE000
_GROUPS = chr(_FIRST_GROUP)


class Texts(NamedTuple):
    """Literal texts of the names that a pattern matches, by their place in the name."""

    exact: bool
    """True if every name with such a text matches; otherwise such names only may
    match."""
    whole: frozenset[str]
    begin: tuple[str, ...]
    end: tuple[str, ...]
    inside: tuple[str, ...]

    def among(self, lines: Lines) -> list[int]:
        """Return which lines have any of the texts where it is to be.

        To look for few texts in one is much faster than to look at many names.
        """
        line_numbers: set[int] = set()
        for text in (
            *(f"\n{text}\n" for text in self.whole),
            *(f"\n{text}" for text in self.begin),
            *(f"{text}\n" for text in self.end),
            *self.inside,
        ):
            at = lines.text.find(text)
            while at >= 0:
                line = bisect_right(lines.breaks, at) - 1
                line_numbers.add(line)
                at = lines.text.find(text, lines.breaks[line + 1])
        return sorted(line_numbers)


class Lines(NamedTuple):
    """Names as one text, a line for each, with a break before and after."""

    text: str
    breaks: list[int]
    """Offsets of the line breaks."""

    @classmethod
    def of(cls, names: Iterable[str]) -> Lines:
        """Return names as one text; a break in a name becomes what no pattern has."""
        lines = [name.replace("\n", "\0") for name in names]
        ends = accumulate((1 + len(line) for line in lines), initial=0)
        return cls("\n".join(("", *lines, "")), [*ends])


@cache
def texts_of(pattern: str) -> Texts | None:
    r"""Return the texts that a pattern stands for or begins with, if they are few.

    >>> texts_of(r"^cuda(Free|Malloc)$|Copy").whole == {"cudaFree", "cudaMalloc"}
    True
    >>> texts_of(r"^aten::\w+|_v\d+")
    Texts(exact=False, whole=frozenset(), begin=('aten::',), end=(), inside=('_v',))
    >>> texts_of(r"\w+_v")
    """
    if not pattern.isascii():
        return None
    choices = list(islice(_spelled_out(pattern), _MOST + 1))
    parts = [part for part in map(_TEXT.fullmatch, choices) if part]
    exact = len(parts) == len(choices)
    if not exact:
        parts = [part for part in map(_FIRST_TEXT.match, choices) if part]
    if len(parts) < len(choices) or len(choices) > _MOST:
        return None
    kinds: dict[tuple[str, str], list[str]] = {}
    for begin, text, end in (part.groups() for part in parts):
        kinds.setdefault((begin, end), []).append(text.replace("\\", ""))
    at = (("^", "$"), ("^", ""), ("", "$"), ("", ""))
    whole, *others = (tuple(kinds.get(kind, ())) for kind in at)
    return Texts(exact, frozenset(whole), *others)


def _spelled_out(pattern: str) -> Iterator[str]:
    """Return a pattern without groups of choices as several without any.

    >>> [*_spelled_out("^(cuda|hip)Free(Host)?$|Copy")]
    ['^cudaFreeHost$', '^cudaFree$', '^hipFreeHost$', '^hipFree$', 'Copy']
    """
    groups: list[str] = []

    def kept(group: re.Match[str]) -> str:
        groups.append(f"{group[1]}|" if group[2] else group[1])
        return chr(_FIRST_GROUP + len(groups) - 1)

    def choices(part: str) -> Iterator[str]:
        for choice in part.split("|"):
            each = (
                choices(groups[ord(sign) - _FIRST_GROUP]) if sign >= _GROUPS else sign
                for sign in choice
            )
            yield from map("".join, product(*each))

    pattern, count = _OPTIONAL.sub(r"(\1)?", pattern), -1
    # The innermost first: those around them have them inside.
    while len(groups) > count:
        count = len(groups)
        pattern = _GROUP.sub(kept, pattern)
    return choices(pattern)
