"""Standard output, standard error and progress, for a terminal or a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

from traceq.cli import streams
from traceq.common.progress import ProgressListener, watched

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from traceq.cli.progress import Display
    from traceq.common.progress import Progress


def width() -> int | None:
    """Return how wide a line may be; none in a pipe, which has no width."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        import shutil

        return shutil.get_terminal_size().columns
    return None


def color() -> bool:
    """Return whether the output is coloured; with ``FORCE_COLOR`` a pipe is, too."""
    if "NO_COLOR" in os.environ:
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and not _dumb())


def screen(*, to_file: bool) -> tuple[int | None, bool]:
    """Return the width of lines and whether they are coloured: not in a file."""
    return (None, False) if to_file else (width(), color())


def _dumb() -> bool:
    return os.environ.get("TERM") == "dumb"


def write(text: str) -> None:
    """Print a result; a reader that stops early, as head does, is not an error."""
    _stop()
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
    from traceq.common.safe_text import printable

    try:
        sys.stderr.write(printable(f"traceq: {text}") + "\n")
    except OSError:
        streams.discard(sys.stderr)


class _Current:
    """State of the screen: the command and its progress display."""

    command = ""
    quiet = False
    display: Display | None = None


@contextlib.contextmanager
def working(words: Sequence[str]) -> Iterator[None]:
    """Show on a terminal how far a command is, until it prints; elsewhere nothing.

    Nor if ``--quiet`` stands before the command.
    """
    _Current.command = next((word for word in words if not word.startswith("-")), "")
    before = words[: words.index(_Current.command)] if _Current.command else words
    _Current.quiet = "--quiet" in before
    try:
        with watched(_Screen()):
            if not {"-h", "--help"} & {*words}:
                _start(_Current.command)
            yield
    finally:
        _stop()


@contextlib.contextmanager
def finishing(what: str) -> Iterator[None]:
    """Show on a terminal what is done after all was printed."""
    if display := _start():
        display.tell(what, 0, 0, "")
    try:
        yield
    finally:
        _stop()


def _start(command: str | None = None) -> Display | None:
    """Begin to show something, if it is not shown and somebody is there to see it.

    Given a command, only if it is one that takes long.
    """
    visible = sys.stderr.isatty() and not _dumb() and not _Current.quiet
    if visible and _Current.display is None:
        # Only where it is shown: what draws it takes a tenth of a second to import.
        from traceq.cli.progress import COMMANDS, Display

        if command is None or command in COMMANDS:
            _Current.display = Display(_Current.command)
    return _Current.display


def _stop() -> None:
    display, _Current.display = _Current.display, None
    if display:
        display.stop()


@contextlib.contextmanager
def reading(name: str) -> Iterator[Progress]:
    """Show the progress of reading a file on a terminal; elsewhere nothing."""
    if (display := _start()) is None:
        yield None
        return
    display.reading(name)
    yield display.bytes_read


@contextlib.contextmanager
def counting(things: str) -> Iterator[Progress]:
    """Show how many of how many are done on a terminal; elsewhere nothing."""
    with reading(things) as progress:
        display = _Current.display
        if progress is None or display is None:
            yield None
            return
        yield lambda done, total: display.tell(things, done, total, "")


class _Screen(ProgressListener):
    """Shows on a terminal what is worked on, and says on any what is to be known."""

    def tell(self, phase: str, done: int, total: int, what: str) -> None:
        if _Current.display:
            _Current.display.tell(phase, done, total, what)

    def say(self, sentence: str) -> None:
        say(sentence)

    def expect(self, loads: int, works: int) -> None:
        if _Current.display:
            _Current.display.expect(loads, works)

    def reading(self, name: str) -> AbstractContextManager[Progress]:
        return reading(name)

    def counting(self, things: str) -> AbstractContextManager[Progress]:
        return counting(things)
