"""The parts of a report that every format writes its own way, and names for them."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.report.base.columns import Column


class TextTable(Struct, frozen=True):
    """A table of texts that are safe to print."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


class Content(Struct, frozen=True):
    """A trace or a device: its name, facts with their labels, and tables."""

    title: str
    warnings: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    tables: tuple[TextTable, ...]


def telling_names(paths: Sequence[str]) -> list[str]:
    """Return paths without the folders in front that all are in, and the common end.

    Neither distinguishes them: runs/a/trace.json and runs/b/trace.json are a and b.
    """
    parts = [Path(path).parts for path in paths]
    folders = _alike([path[:-1] for path in parts])
    names = [str(Path(*path[folders:])) for path in parts]
    ends = {
        name[len(name) - _alike([name[::-1] for name in names]) :] for name in names
    }
    match = re.search(r"[./\\].*", ends.pop())
    if match is None or len(names) == 1 or match[0] in names:
        return names
    return [name.removesuffix(match[0]) for name in names]


def _alike(sequences: Sequence[Sequence[str]]) -> int:
    """Return the length of the sequences' common prefix."""
    pairs = zip(*sequences, strict=False)
    return sum(1 for _ in takewhile(lambda elements: len(set(elements)) == 1, pairs))
