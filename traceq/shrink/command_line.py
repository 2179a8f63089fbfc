"""The command line of a run, as a fixture may show it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from traceq.check.program import LEFT_OUT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NAME = re.compile(r"[\w.-]+")
_PATH = re.compile(r"[\w./-]+")
_OPTION = re.compile(r"--?[A-Za-z][\w.-]{0,40}")
_NUMBER = re.compile(r"\d{1,8}(?:\.\d{1,8})?(?:e-?\d{1,2})?")
_STEPS_BY = ("optimizer", "forward", "mark", "time")


def shown_command(command: Sequence[str], root: Path) -> str:
    """Return a command line with programs, options, numbers and files of a repository.

    Files are relative to the repository, so that the command can be run there; what
    else stands in it is left out.
    """
    return " ".join(
        _word(word, before, root)
        for before, word in zip(["", *command], command, strict=False)
    )


def collect_command(command: str, options: Mapping[str, object]) -> str:
    """Return the command that recorded a run, to record it again."""
    by = options.get("steps_by")
    chosen = f" --steps-by {by}" if by in _STEPS_BY else ""
    return f"traceq collect{chosen} -- {command}"


def _word(word: str, after: str, root: Path) -> str:
    """Return a word of a command line if it identifies nobody."""
    name = PurePath(word).name
    if after and (inside := _in_repository(word, root)):
        return shlex.quote(inside)
    if after == "" or name.endswith(".py"):
        return name if _NAME.fullmatch(name) else LEFT_OUT
    if after == "-m" and _NAME.fullmatch(word):
        return word
    option, equals, value = word.partition("=")
    if _OPTION.fullmatch(option):
        return option + (equals and "=" + _word(value, option, root))
    return word if _NUMBER.fullmatch(word) else LEFT_OUT


def _in_repository(word: str, root: Path) -> str:
    """Return the path of a file, relative to the repository; empty if it is not one."""
    if not _PATH.fullmatch(word):
        return ""
    for base in (Path.cwd(), root):
        file = (base / word).resolve()
        if file.is_file() and file.is_relative_to(root):
            return file.relative_to(root).as_posix()
    return ""
