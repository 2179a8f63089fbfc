"""The program's Python warnings, kept in a file; they are still shown as before.

The file has no credentials in it, see ``redact``.
"""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any, TextIO

from ..shared import redact


class WarningLog:
    """Keeps what goes through ``warnings``, up to LIMIT bytes."""

    LIMIT = 1_000_000
    HELD = 200  # warnings kept in memory while there is no file yet

    def __init__(self) -> None:
        self.count = 0
        self.truncated = False
        self.file: Path | None = None
        self._held: list[str] = []
        self._size = 0
        self._shown: Any = None
        self._removed = False

    def install(self) -> None:
        """Keep every warning from now on, and show it as the program would."""
        self._shown = warnings.showwarning
        warnings.showwarning = self._show

    def remove(self) -> None:
        """Keep none from now on."""
        # Whoever came after us passes warnings on to us, which pass them on.
        if warnings.showwarning == self._show:
            warnings.showwarning = self._shown
        self._removed = True

    def open(self, file: Path) -> None:
        """Write to ``file`` from now on, starting with the warnings held so far."""
        self.file = file
        held, self._held = self._held, []
        for text in held:
            self._write(text)

    def _show(  # noqa: PLR0913, PLR0917 - as warnings.showwarning is called
        self,
        message: Any,
        category: Any,
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        with contextlib.suppress(Exception):
            if not self._removed:
                self._keep(
                    warnings.formatwarning(message, category, filename, lineno, line)
                )
        self._shown(message, category, filename, lineno, file, line)

    def _keep(self, text: str) -> None:
        self.count += 1
        if self.file is None:
            if len(self._held) < self.HELD:
                self._held.append(text)
            else:
                self.truncated = True
        else:
            self._write(text)

    def _write(self, text: str) -> None:
        data = redact.log(text).encode("utf-8", "replace")
        if self.file is None or self._size + len(data) > self.LIMIT:
            self.truncated = True
            return
        with self.file.open("ab") as stream:
            stream.write(data)
        self._size += len(data)
