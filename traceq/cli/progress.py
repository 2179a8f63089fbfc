"""Progress of a command, as one line on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from traceq.common import units
from traceq.common.safe_text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Shares of the time, in percent, as measured with traces of 200 MB; what is read from
# the cache is passed over.
_LOAD = {"reading": 22, "tables": 5, "graph": 11}
_LINT = {
    "rules": 38,
    "the rest": 9,
    "savings": 2,
    "fixes together": 6,
    "idle time": 6,
}
_PHASES: Mapping[str, Mapping[str, float]] = {
    "lint": _LOAD | _LINT | {"writing": 1},
    "annotate": _LOAD | _LINT | {"writing": 12},
    "open": _LOAD | _LINT | {"writing": 12},
    "report": _LOAD | _LINT | {"writing": 8},
    "check": _LOAD | _LINT | {"writing": 1},
    "diff": _LOAD | _LINT | {"comparing": 12, "writing": 1},
    "shrink": _LOAD | _LINT | {"cutting": 200, "writing": 1},
    "summary": _LOAD | {"replay": 25, "writing": 1},
    "ranks": {"ranks": 95, "writing": 5},
}
_OTHER: Mapping[str, float] = _LOAD | {"writing": 4}
COMMANDS = (*_PHASES, "memory", "query", "regions", "roofline")
"""Those that take long."""
RULES = "rules"
WITHIN = "replay"
"""Phase that runs inside of the one under way, and takes a part of its time."""
# How many others each takes the time of; the first makes the account of the host.
LONG_RULES = {"HST001": 30.0, "HST003": 8.0}
_MANY_RULES = 30
_WIDEST_NAME = 40


class Display:
    """Progress of a command, as it is displayed."""

    def __init__(self, command: str) -> None:
        """Show it from now on."""
        self._track = Track(_PHASES.get(command, _OTHER))
        self._name = ""
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(30),
            TaskProgressColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
        )
        self._task = self._progress.add_task("starting", total=1.0, detail="")
        self._progress.start()

    def stop(self) -> None:
        """Remove it from the screen."""
        self._progress.stop()

    def expect(self, loads: int, works: int) -> None:
        """Take notice of how many recordings are loaded and worked on."""
        self._track.counts = {True: max(1, loads), False: max(1, works)}

    def reading(self, name: str) -> None:
        """Take notice of the name of what is read next."""
        self._name = printable(name)[:_WIDEST_NAME]
        self._show(f"reading {self._name}", "")

    def bytes_read(self, done: int, total: int) -> None:
        """Show how much of a file was read."""
        detail = units.size(done) + (f" of {units.size(total)}" if total else "")
        self._track.go("reading", done, total)
        self._show(f"reading {self._name}", detail)

    def tell(self, phase: str, done: int, total: int, what: str) -> None:
        """Show what is worked on, which of how many."""
        self._track.go(phase, done, total, what)
        detail = f"{min(done + 1, total)} of {total}" if total > 1 else ""
        self._show(phase, f"{detail} {what}".strip())

    def _show(self, text: str, detail: str) -> None:
        self._progress.update(
            self._task,
            description=text,
            detail=detail,
            completed=self._track.reached,
        )


class Track:
    """The way from the start of a command to its end, by shares of its time.

    First all recordings are loaded, then all are worked on; it never goes back.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        """Start with one recording."""
        self.counts = {True: 1, False: 1}
        """Number of recordings to load, and to process."""
        self.reached = 0.0
        self._weights = weights
        self._turn = {True: 0, False: 0}
        self._last = {True: (0, 0.0), False: (0, 0.0)}
        self._from = self._until = 0.0
        self._behind = 0.0
        """The weight of long rules that have run."""
        self._rule = 0.0

    def go(self, phase: str, done: int, total: int, what: str = "") -> None:
        """Go to where this much of a phase is done."""
        part, until = done / total if total else 0.0, 1.0
        if phase in self._weights:
            if phase == RULES:
                part, until = self._rules(done, total, what)
            self._take_turn(phase, part)
            self._from, self._until = self._at(phase, part), self._at(phase, until)
            self.reached = max(self.reached, self._from)
        elif phase == WITHIN:
            inside = self._from + (self._until - self._from) * part
            self.reached = max(self.reached, inside)

    def _take_turn(self, phase: str, part: float) -> None:
        """Go on with the next recording if this is behind already."""
        loads = phase in _LOAD
        place = (self._names(loads=loads).index(phase), part)
        if place < self._last[loads] and self._turn[loads] + 1 < self.counts[loads]:
            self._turn[loads] += 1
        self._last[loads] = place

    def _rules(self, done: int, total: int, code: str) -> tuple[float, float]:
        """Return which share of the rules' time is over, and will be after this one."""
        self._behind = 0.0 if not done else self._behind + self._rule
        self._rule = LONG_RULES.get(code, 0.0)
        # Of a few rules that were selected the long ones may be none.
        whole = total + (sum(LONG_RULES.values()) if total > _MANY_RULES else 0.0)
        passed = done + self._behind
        return passed / whole, min(1.0, (passed + 1 + self._rule) / whole)

    def _at(self, phase: str, part: float) -> float:
        """Return the share of the way at a part of a phase."""
        loads = phase in _LOAD
        names = self._names(loads=loads)
        before = 0.0 if loads else self._sum(_LOAD)
        passed = self._sum(names[: names.index(phase)]) + self._weights[phase] * part
        turns = self._turn[loads] * self._sum(names) + passed
        return min(
            1.0, (before + turns / self.counts[loads]) / self._sum(self._weights)
        )

    def _names(self, *, loads: bool) -> list[str]:
        """Return the phases of loading, or those after it."""
        return [name for name in self._weights if (name in _LOAD) == loads]

    def _sum(self, names: Iterable[str]) -> float:
        return sum(self._weights.get(name, 0.0) for name in names)
