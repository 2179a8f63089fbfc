"""One run of a sweep: the program, recorded, with its output read for numbers."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from pathlib import Path
from typing import Any, Callable

from . import bound, launch, sweep_options
from .screen import Screen
from .tee import Tee

KILL_S = 10.0  # for a program that is asked to end
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
_LONGEST_LINE = 1 << 16


class Interruption:
    """A signal that asks the sweep to end; ``came`` is true from then on."""

    def __init__(self) -> None:
        self.came = False


class Printed:
    """Numbers in the program's output, by the patterns of ``--number``."""

    def __init__(self, patterns: list[str]) -> None:
        self.values: dict[str, list[float]] = {}
        self._patterns = [
            (sweep_options.number_name(pattern), re.compile(pattern))
            for pattern in patterns
        ]
        self._begun = ""

    def read(self, data: bytes) -> None:
        """Look for numbers in what the program has written."""
        if not self._patterns:
            return
        text = self._begun + data.decode("utf-8", "replace").replace("\r", "\n")
        lines = text.split("\n")
        self._begun = lines.pop()[-_LONGEST_LINE:]
        for line in lines:
            self._look(line)

    def end(self) -> None:
        """Look at the last line, which may have no end."""
        self._look(self._begun)
        self._begun = ""

    def _look(self, line: str) -> None:
        for name, pattern in self._patterns:
            for match in pattern.finditer(line):
                with contextlib.suppress(ValueError, TypeError):
                    value = float(match[1].replace(",", "").rstrip("."))
                    self.values.setdefault(name, []).append(value)


class SweepRun(launch.Launch):
    """A run of the program whose output is kept, and not shown."""

    def __init__(  # noqa: PLR0913, PLR0917 - those of a launch, and two
        self,
        chosen: Any,
        place: Path,
        status_folder: Path,
        screen: Screen,
        interruption: Interruption,
        show: Callable[[float], None],
    ) -> None:
        super().__init__(chosen, place, None, status_folder, screen)
        self.facts["tool"] = "traceq sweep"
        self.interruption = interruption
        self.printed = Printed(chosen.number)
        self.timed_out = False
        self._show = show
        self._began = time.monotonic()
        self._asked_to_end = 0.0

    def _open(self) -> Tee:
        tee = super()._open()
        tee.show = self.printed.read
        return tee

    def _stdout(self, tee: Tee) -> int | None:
        return tee.end

    def _handle_signals(self, tee: Tee) -> None:
        super()._handle_signals(tee)
        for name in _SIGNALS:
            number = getattr(signal, name, None)
            if number and signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._end_sweep)

    def _end_sweep(self, number: int, _frame: Any) -> None:
        """End the program, and the sweep after it; a second signal kills it."""
        again, self.interruption.came = self.interruption.came, True
        child = self._child
        if child is None:
            return
        if again:
            child.kill()
        elif number == signal.SIGTERM or not bound.at_terminal():
            child.send_signal(number)  # a terminal has sent it to the program, too

    def _show_progress(self) -> None:
        seconds = time.monotonic() - self._began
        self._show(seconds)
        limit = self.options.timeout
        if limit is None or seconds < limit or self._child is None:
            return
        if not self.timed_out:
            self.timed_out = True
            self._child.terminate()
        elif seconds > limit + KILL_S:
            self._child.kill()

    def _wait_for_writers(self) -> None:
        deadline = time.monotonic() + launch.WRITING_S
        while self._has_writer() and time.monotonic() < deadline:
            time.sleep(launch.POLL)

    def _report(self, status: int) -> int:
        self.printed.end()
        return self._code(status)
