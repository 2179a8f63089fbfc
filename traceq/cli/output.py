"""Standard output, standard error and progress, for a terminal or a pipe."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
)

from traceq.cli import streams
from traceq.report.base.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def width() -> int | None:
    """Return how wide a line may be; none in a pipe, which has no width."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return shutil.get_terminal_size().columns
    return None


def color() -> bool:
    """Return whether the output may be coloured."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and not _dumb()


def _dumb() -> bool:
    return os.environ.get("TERM") == "dumb"


def write(text: str) -> None:
    """Print a result; a reader that stops early, as head does, is not an error."""
    try:
        sys.stdout.write(_encodable(text))
        sys.stdout.flush()
    except BrokenPipeError:
        streams.discard(sys.stdout)


def _encodable(text: str) -> str:
    """Return what the output's encoding can write of a text."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, errors="replace").decode(encoding)


def say(text: str) -> None:
    """Print one line to standard error, away from the result."""
    try:
        sys.stderr.write(printable(f"traceq: {text}") + "\n")
    except OSError:
        streams.discard(sys.stderr)


@contextlib.contextmanager
def reading(name: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show the progress of reading a file on a terminal; elsewhere nothing."""
    if not sys.stderr.isatty() or _dumb():
        yield None
        return
    columns = (TextColumn("reading {task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=None)

        def update(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield update


@contextlib.contextmanager
def counting(things: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show how many of how many are done on a terminal; elsewhere nothing."""
    if not sys.stderr.isatty() or _dumb():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(things, total=None)

        def update(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield update
