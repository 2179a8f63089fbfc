"""Base class of all results: text for the terminal, JSON, and HTML for a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from traceq.inputs.display_path import parse_path
from traceq.model.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from traceq.report.base.content import Content

Name: TypeAlias = "str | PathLike[str]"
"""A file, a folder or a URL."""
Names: TypeAlias = "Name | Iterable[Name]"
"""One, or several."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """Result of a command, as an object.

    ``str()`` is the terminal's text without colour, ``to_dict()`` what ``--format
    json`` writes, and a notebook shows it as HTML.
    """

    notes: tuple[str, ...] = ()
    """Notices that the command prints beside the result, as on unreadable files."""
    unread: int = 0
    """Number of unreadable files, of several; ``notes`` say why. One alone
    raises."""

    def text(self, *, width: int | None = None, color: bool = False) -> str:
        """Return the text for a terminal of this width."""
        raise NotImplementedError

    def json(self) -> str:
        """Return the JSON."""
        raise NotImplementedError

    def contents(self) -> Sequence[Content]:
        """Return what a notebook shows; of nothing it shows the text."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON as Python's own objects."""
        content: dict[str, Any] = orjson.loads(self.json())
        return content

    def __str__(self) -> str:
        return self.text().rstrip("\n")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        # Templates are for notebooks alone: no command waits for them.
        from traceq.report.notebook import render  # noqa: PLC0415

        return render(self.contents(), str(self), self.notes)


def _finding_html(finding: Finding) -> str:
    from traceq.report.notebook import render_finding  # noqa: PLC0415 - as above

    return render_finding(finding)


Finding.html = _finding_html


def paths(names: Names | None) -> list[Path]:
    """Return the paths that were given: one, several, or none.

    >>> [str(path) for path in paths("a.json")], [str(path) for path in paths(["b"])]
    (['a.json'], ['b'])
    """
    if isinstance(names, (str, PathLike)):
        return [parse_path(names)]
    return [parse_path(name) for name in names or ()]


def path(name: Name | None) -> Path | None:
    """Return the path that was given, if one was."""
    return None if name is None else parse_path(name)


def several(words: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return words that were given, one or several.

    >>> several("SYN"), several(["SYN", "LCH001"]), several(None)
    (('SYN',), ('SYN', 'LCH001'), ())
    """
    return (words,) if isinstance(words, str) else tuple(words or ())
