"""Edits of a program's source as data: replaced spans of text, and their lines."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class RefusedError(Exception):
    """An edit that is not certain; its text is the sentence that says why."""


class Replacement(Struct, frozen=True, order=True):
    """A span of a file's text, and the text to write instead."""

    file: str
    """Path from the root of the project."""
    start: int
    end: int
    text: str


class Hunk(Struct, frozen=True):
    """Lines of a file before and after an edit."""

    file: str
    line: int
    """Number of the first one."""
    before: str
    after: str


class Proposal(Struct, frozen=True):
    """The edit of one finding, or the reason why there is none."""

    code: str
    fingerprint: str
    edit: str
    """Name of the edit, which is that of the remedy; empty if the rule has none."""
    replacements: tuple[Replacement, ...] = ()
    hunks: tuple[Hunk, ...] = ()
    refusal: str = ""


def apply(text: str, replacements: Iterable[Replacement]) -> str:
    """Return a text with its replacements, in order; no two of them may overlap."""
    parts, position = [], 0
    for replacement in _in_order(replacements):
        parts += [text[position : replacement.start], replacement.text]
        position = replacement.end
    return "".join([*parts, text[position:]])


def _in_order(replacements: Iterable[Replacement]) -> list[Replacement]:
    return sorted(
        replacements, key=lambda replacement: (replacement.start, replacement.end)
    )


def overlapping(replacements: Sequence[Replacement]) -> bool:
    """Return whether two replacements of a file touch the same characters.

    Texts that are inserted at one place follow each other, and do not overlap.
    """
    ordered = _in_order(replacements)
    return any(first.end > other.start for first, other in pairwise(ordered))


def hunks(file: str, text: str, replacements: Sequence[Replacement]) -> list[Hunk]:
    """Return the lines that replacements change, one hunk for adjacent lines."""
    starts = line_starts(text)
    groups: list[list[Replacement]] = []
    last = -1
    for replacement in _in_order(replacements):
        first = _line(starts, replacement.start)
        if not groups or first > last:
            groups.append([])
        groups[-1].append(replacement)
        last = max(last, _line(starts, replacement.end))
    return [_hunk(file, text, starts, group) for group in groups]


def _hunk(file: str, text: str, starts: list[int], group: list[Replacement]) -> Hunk:
    first = _line(starts, group[0].start)
    last = _line(starts, max(replacement.end for replacement in group))
    begin = starts[first]
    end = starts[last + 1] if last + 1 < len(starts) else len(text)
    moved = [
        Replacement(
            replacement.file,
            replacement.start - begin,
            replacement.end - begin,
            replacement.text,
        )
        for replacement in group
    ]
    before = text[begin:end]
    after = apply(before, moved)
    return Hunk(file, first + 1, _without_end(before), _without_end(after))


def _without_end(lines: str) -> str:
    return "\n".join(lines.splitlines()) if lines.splitlines() else ""


def line_starts(text: str) -> list[int]:
    r"""Return where each line begins; lines end with ``\n``, ``\r\n`` or ``\r``."""
    starts = [0]
    for position, character in enumerate(text):
        if character == "\n" or (
            character == "\r" and text[position + 1 : position + 2] != "\n"
        ):
            starts.append(position + 1)
    return starts


def _line(starts: list[int], position: int) -> int:
    return bisect_right(starts, position) - 1
