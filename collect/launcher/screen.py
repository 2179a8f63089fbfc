"""Status lines of collect on the terminal, between the lines of the program."""

from __future__ import annotations

import contextlib
import sys

_SENTENCES = {
    "waiting": "warm-up, step {done} of {total}",
    "timing": "timing without the profiler, step {done} of {total}",
    "meeting": "waiting for the other ranks to be ready",
    "tracing": "tracing, step {done} of {total}",
    "memory": "recording memory history, step {done} of {total}",
    "writing": "writing",
    "done": "recorded; the program continues",
    "overhead": "the program has ended; measuring what recording costs",
}


class Screen:
    """One status line on a terminal; one line per phase elsewhere."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.moving = sys.stderr.isatty()
        self._line = ""
        self._phase: str | None = None
        self._at_line_start = True

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._clear()
        if not self._at_line_start:
            self._write(b"\n")
            self._at_line_start = True
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"traceq: {text}\n")
            sys.stderr.flush()

    def line(self, text: str) -> None:
        """Print a line of a table, without our name before it."""
        self._clear()
        self._write(f"{text}\n".encode("utf-8", "replace"))

    def show(self, text: str) -> None:
        """Show a status line that the next output overwrites; on a terminal only."""
        if self.moving and self._at_line_start and text != self._line:
            self._write(f"\x1b[K\x1b[2mtraceq: {text}\x1b[0m\r".encode())
            self._line = text

    def progress(self, phase: str, done: int, total: int) -> None:
        """Show the progress of the recording."""
        if self.quiet or phase not in _SENTENCES or not self._at_line_start:
            return
        text = _SENTENCES[phase].format(done=min(done, total), total=total)
        if not self.moving:
            if phase != self._phase:
                self.say(text.split(", step")[0])
        elif text != self._line:
            # The cursor returns, so what the program prints overwrites the line.
            self._write(f"\x1b[K\x1b[2mtraceq: {text}\x1b[0m\r".encode())
            self._line = text
        self._phase = phase

    def passed(self, data: bytes) -> None:
        """Pass on what the program wrote to stderr."""
        self._clear()
        self._write(data)
        self._at_line_start = data.endswith(b"\n")

    def _clear(self) -> None:
        if self._line:
            self._write(b"\x1b[K")
            self._line = ""

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
            sys.stderr.buffer.write(data)
            sys.stderr.buffer.flush()
