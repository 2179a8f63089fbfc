"""The program's stderr: passed on at once, byte for byte, and kept in a file.

The file has no credentials in it, see ``redact``.

If our stderr is a terminal the program gets one too, so progress bars and colours stay
as they are; otherwise it gets a pipe.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from pathlib import Path
from typing import Any, Callable

from ..shared import redact

try:
    import fcntl
    import pty
    import termios
except ImportError:  # not a POSIX system: always a pipe
    pty = None  # type: ignore[assignment] # not available


class Tee:
    """One end for the program to write to, the other for us to read from."""

    LIMIT = 20_000_000
    LONGEST_LINE = 1 << 16

    def __init__(self, file: Path, show: Callable[[bytes], None]) -> None:
        self.show = show
        self.kept = 0
        self.truncated = False
        self._begun = b""
        self._log: Any = file.open("xb")
        self.end, self.source = _terminal() if _wants_terminal() else _pipe()

    def started(self) -> None:
        """Close our copy of the program's end once the program has it."""
        os.close(self.end)

    def pump(self, seconds: float) -> bool:
        """Pass on what arrives within ``seconds``; return False at the end of file."""
        # Windows waits for sockets only: there, reading waits for the program itself.
        if os.name != "nt" and not select.select([self.source], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.source, 1 << 16)
        except OSError:  # a terminal whose other end is closed
            data = b""
        if data:
            self.show(data)
            self._keep(data)
        return bool(data)

    def add(self, data: bytes) -> None:
        """Keep lines that are not shown."""
        self._write(self._begun)
        self._begun = b""
        self._write(data)

    def resize(self) -> None:
        """Give the program's terminal the size of ours."""
        with contextlib.suppress(Exception):
            _copy_size(self.source)

    def close(self) -> None:
        """Close what is ours."""
        self._write(self._begun)
        with contextlib.suppress(OSError):  # the disk is full
            self._log.close()
        os.close(self.source)

    def _keep(self, data: bytes) -> None:
        """Keep whole lines, so that no half of a secret is taken for harmless."""
        self._begun += data
        end = max(self._begun.rfind(b"\n"), self._begun.rfind(b"\r")) + 1
        if not end and len(self._begun) > self.LONGEST_LINE:
            end = len(self._begun)
        self._write(self._begun[:end])
        self._begun = self._begun[end:]

    def _write(self, data: bytes) -> None:
        if self.kept < self.LIMIT:
            text = data.decode("utf-8", "surrogateescape")
            data = redact.log(text).encode("utf-8", "surrogateescape")
        room = self.LIMIT - self.kept
        if len(data) > room:
            data = data[:room]
            self.truncated = True
        with contextlib.suppress(OSError):
            self._log.write(data)
            self._log.flush()
            self.kept += len(data)


def _wants_terminal() -> bool:
    return pty is not None and sys.stderr.isatty()


def _pipe() -> tuple[int, int]:
    source, end = os.pipe()
    return end, source


def _terminal() -> tuple[int, int]:
    source, end = pty.openpty()
    # The real terminal translates newlines; they must not be translated twice.
    settings = termios.tcgetattr(end)
    settings[1] &= ~termios.OPOST
    termios.tcsetattr(end, termios.TCSANOW, settings)
    with contextlib.suppress(OSError):
        _copy_size(source)
    return end, source


def _copy_size(to: int) -> None:
    size = fcntl.ioctl(sys.stderr.fileno(), termios.TIOCGWINSZ, b"\0" * 8)
    fcntl.ioctl(to, termios.TIOCSWINSZ, size)
