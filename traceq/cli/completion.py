"""Completion in the shell; it asks at every key, so nothing slow is imported."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from traceq.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import click

ASKED = "_TRACEQ_COMPLETE"
"""What the scripts of shells set when they ask."""


class _Place(NamedTuple):
    """Where a shell looks for the script."""

    script: str
    start: str = ""
    """The file that the shell reads at its start, if it must name the script."""
    lines: str = ""


_PLACES = {
    "bash": _Place(
        ".bash_completions/traceq.sh", ".bashrc", "source ~/.bash_completions/traceq.sh"
    ),
    "zsh": _Place(
        ".zfunc/_traceq", ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"
    ),
    "fish": _Place(".config/fish/completions/traceq.fish"),
}


def codes(incomplete: str) -> Iterator[tuple[str, str]]:
    """Yield the codes of rules that begin like this, with their names.

    The last of several codes, as in ATT001,SYN, is completed, small letters as such.
    """
    before, comma, last = incomplete.rpartition(",")
    from traceq.report.rule_index import listed

    for code, card in listed().items():
        if code.startswith(last.upper()):
            written = code.lower() if last.islower() else code
            yield before + comma + written, card.name()


def answer(commands: click.Group, asked: str) -> int:
    """Print what a shell asks for, and return the exit status."""
    from click.shell_completion import shell_complete

    return shell_complete(commands, {}, "traceq", ASKED, asked)


def script(commands: click.Group) -> str:
    """Return what makes the user's shell complete."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(_shell())
    if found is None:
        msg = f"there is no completion for {_shell()}"
        raise UsageError(msg)
    return found(commands, {}, "traceq", ASKED).source()


def install(commands: click.Group) -> Path:
    """Write the script to where the user's shell finds it, and return where."""
    from traceq.common.atomic_files import write_files

    place = _PLACES[_shell()]
    home = Path.home()
    file = home / place.script
    file.parent.mkdir(parents=True, exist_ok=True)
    contents = {file: script(commands).encode()}
    if place.start:
        start = home / place.start
        before = start.read_bytes() if start.exists() else b""
        line = place.lines.encode()
        if line not in before.splitlines():
            gap = b"" if not before or before.endswith(b"\n") else b"\n"
            contents[start] = before + gap + line + b"\n"
    write_files(contents)
    return file


def _shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in _PLACES:
        msg = (
            f"completion is for {', '.join(_PLACES)}, and SHELL is"
            f" {name or 'not set'}: set SHELL to one of them"
        )
        raise UsageError(msg)
    return name
