"""Changed files as a unified diff, as git applies it."""

from __future__ import annotations

from difflib import unified_diff
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceq.fix.propose import Changed

_NO_END = "\n\\ No newline at end of file\n"


def render(files: Iterable[Changed]) -> str:
    """Return the diff of all files; line ends and encodings are those of the files."""
    return "".join(_of_file(file) for file in files)


def _of_file(changed: Changed) -> str:
    before, after = _lines(changed.before), _lines(changed.after)
    lines = unified_diff(before, after, f"a/{changed.file}", f"b/{changed.file}")
    return "".join(
        line if line.endswith("\n") else f"{line}{_NO_END}" for line in lines
    )


def _lines(text: str) -> list[str]:
    """Return the lines with their ends; for git, only a line feed ends one."""
    parts = text.split("\n")
    lines = [f"{part}\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines
