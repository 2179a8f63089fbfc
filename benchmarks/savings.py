"""What traceq says that fixes save, against what they really saved.

    python benchmarks/savings.py benchmarks/pairs.json benchmarks/pairs_held_out.json

Each file names a folder of captures, whose captures.toml has what a step of each takes
without the profiler, and which of them are pairs:

    {"captures": "folder", "pairs": {"sick": {"twin": "repaired", "fixes": ["ATT001"]}}}

A capture is NAME.trace.json.gz, or a run folder of collect; a trace file may have what
recording cost where it was made, as a table [recorder_overhead.NAME] of captures.toml.

For every pair the sick trace is linted, with the measured step (calibrated) and
without. The step that is left when its findings are fixed is compared with the step of
the repaired twin, and so is its range. Without ``fixes`` these are all findings; a twin
that repairs fewer names them. Pairs are reported apart by what bounds the sick step.
Of the trace alone, the estimated step is compared with the measured one too.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from captures import read_pairs

from traceq.analysis.base.assumptions import MEASURED_SPREAD
from traceq.finding import Severity
from traceq.linter.config import Config
from traceq.linter.engine import lint
from traceq.linter.pack import load_rules
from traceq.linter.savings import Savings
from traceq.linter.view import View
from traceq.recording import Recording

if TYPE_CHECKING:
    from collections.abc import Sequence

    from captures import Pair

    from traceq.finding import Finding
    from traceq.trace import Trace

_MS = 1_000_000
_WIDTHS = (24, 6, 8, 8, 8, 7, 15, 8, 7, 15)
_HEAD = (
    *("pair", "bound", "before", "after"),
    *("said", "off", "range"),
    *("alone", "off", "range"),
)


@dataclass(frozen=True)
class Said:
    """A time of a step in ms, as traceq says it, with its range, and the true one."""

    likely: float
    low: float
    high: float
    true: float

    @property
    def off(self) -> float:
        """By which share it is too long."""
        return self.likely / self.true - 1

    @property
    def inside(self) -> bool:
        """Whether the true time is in the range."""
        return self.low <= self.true <= self.high

    @property
    def cells(self) -> tuple[str, str, str]:
        """The figures of a row."""
        limits = f"{self.low:.2f} to {self.high:.2f}" + ("" if self.inside else " !")
        return f"{self.likely:.2f}", f"{self.off:+.0%}", limits


@dataclass(frozen=True)
class Compared:
    """A pair, and what was said of it."""

    pair: Pair
    bound: str
    after: Said
    """The step after the fixes, with the measured step known."""
    after_alone: Said
    """The same of the trace alone."""
    before_alone: Said
    """The step before them, of the trace alone."""
    worst: tuple[Finding, ...]

    @property
    def row(self) -> tuple[str, ...]:
        """The cells of its row."""
        before = f"{self.before_alone.true:.2f}"
        return (
            *(self.pair.sick, self.bound, before, f"{self.after.true:.2f}"),
            *(*self.after.cells, *self.after_alone.cells),
        )


def _findings(trace: Trace, step_ns: int | None) -> tuple[tuple[Finding, ...], str]:
    recording = Recording("", trace, step_ns=step_ns)
    outcome = lint([recording], load_rules(), Config()).outcomes[0]
    return outcome.findings, outcome.bound.by if outcome.bound else ""


def _left(trace: Trace, step_ns: int | None, pair: Pair) -> tuple[Said, str]:
    """Return what is said to be left of a step after the fixes, and its bound."""
    findings, bound = _findings(trace, step_ns)
    fixed = [
        one
        for one in findings
        if (one.code in pair.fixes if pair.fixes else one.severity != Severity.info)
    ]
    true = pair.captures.step_ms[pair.twin]
    worth = Savings(View(trace, step_ns))
    step, low, high = (worth.step_ns,) * 3
    for left in worth.together(fixed):
        step, low, high = left.step_ns, left.step_low_ns, left.step_high_ns
    return Said(step / _MS, low / _MS, high / _MS, true), bound


def _before_alone(trace: Trace, true: float) -> Said:
    """Return what a step is estimated to take, of the trace alone."""
    view = View(trace)
    steps = [
        view.replay.run(scale=one).step_ns / _MS for one in view.calibration.scales
    ]
    # The measured step itself is known no better.
    low, high = min(steps) * (1 - MEASURED_SPREAD), max(steps) * (1 + MEASURED_SPREAD)
    return Said(steps[0], low, high, true)


def _compared(pair: Pair) -> Compared:
    trace = pair.captures.load(pair.sick)
    step_ns = pair.captures.step_ns(pair.sick)
    after, bound = _left(trace, step_ns, pair)
    findings, _ = _findings(trace, step_ns)
    return Compared(
        pair,
        bound,
        after,
        _left(trace, None, pair)[0],
        _before_alone(trace, pair.captures.step_ms[pair.sick]),
        tuple(one for one in findings if one.severity != Severity.info),
    )


def _row(texts: tuple[str, ...]) -> str:
    first, *others = texts
    cells = [first.ljust(_WIDTHS[0])]
    cells += [
        text.rjust(width) for text, width in zip(others, _WIDTHS[1:], strict=True)
    ]
    return " ".join(cells)


def _totals(name: str, said: Sequence[Said]) -> str:
    off = [abs(one.off) for one in said]

    def share(of: Sequence[bool]) -> str:
        return f"{sum(of) / len(of):.0%}"

    return (
        f"  {name:<34} off by {statistics.median(off):4.0%} at the median,"
        f" {max(off):4.0%} at most; {share([one <= 0.2 for one in off])} within 20%,"
        f" {share([one <= 0.3 for one in off])} within 30%;"
        f" in the range {share([one.inside for one in said])}"
    )


def _report(title: str, found: Sequence[Compared]) -> None:
    if not found:
        return
    print(f"{title}, {len(found)} pairs")
    print(_totals("after the fixes, step measured", [one.after for one in found]))
    print(_totals("after the fixes, trace alone", [one.after_alone for one in found]))
    print(_totals("before them, trace alone", [one.before_alone for one in found]))


def _compare(path: Path) -> list[Compared]:
    print(path)
    print(_row(_HEAD))
    found = []
    for pair in read_pairs(path):
        one = _compared(pair)
        found.append(one)
        worst = " ".join(f"{it.code} {it.saves_ns / _MS:.2f}" for it in one.worst[:6])
        print(_row(one.row), worst, flush=True)
    return found


def _report_all(found: Sequence[Compared]) -> None:
    for bound in ("gpu", "host"):
        _report(f"{bound}-bound", [one for one in found if one.bound == bound])


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    everything: list[Compared] = []
    for argument in sys.argv[1:]:
        of_file = _compare(Path(argument))
        _report_all(of_file)
        everything += of_file
    if len(sys.argv) > 2:
        print("all files")
        _report_all(everything)
