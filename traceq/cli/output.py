"""Standard output, standard error and progress, as a terminal or a pipe wants them."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PIPE_WIDTH = 100
_BROKEN_PIPE = 128 + 13


def width(*, of_pipe: int = _PIPE_WIDTH) -> int:
    """Return how wide the output may be: a terminal's width, or what a pipe gets."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return shutil.get_terminal_size().columns
    return of_pipe


def color() -> bool:
    """Return whether the output may be coloured."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def write(text: str) -> None:
    """Print a result; end quietly when the reader has had enough, as head does."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(_BROKEN_PIPE) from None
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))


def say(text: str) -> None:
    """Tell the person at the terminal something that is not the result."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text + "\n")


@contextlib.contextmanager
def reading(name: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show how far the reading of a file is, if somebody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("reading {task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=None)

        def update(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield update
