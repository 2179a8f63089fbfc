"""Predicted savings of fixes, compared with the measured savings.

    python benchmarks/savings.py benchmarks/pairs.json benchmarks/pairs_held_out.json

Each file names a folder of captures, whose captures.toml has what a step of each takes
without the profiler, and which of them are pairs:

    {"captures": "folder", "pairs": {"sick": {"twin": "repaired", "fixes": ["ATT001"]}}}

A capture is NAME.trace.json.gz, or a run folder of collect; a trace file may have what
recording cost where it was made, as a table [recorder_overhead.NAME] of captures.toml.

For every pair the sick trace is linted, with the measured step (calibrated) and
without. The step that is left when its findings are fixed is compared with the step of
the repaired twin, and so is its range. Without ``fixes`` these are all findings; a twin
that repairs fewer names them. It may do more than is advised, as keep its weights in 16
bits without float32 copies: of a minor finding that it names, and whose fix leaves
kernels as they are, all work goes. Pairs are reported apart by what bounds the sick
step. Of the trace alone, the estimated step is compared with the measured one too.

Files of `traceq try` are read instead (see trials.py): the error of each rule.

Of all three files the figures are written to benchmarks/savings.json, of which the
tables of docs/savings.md are made: ``make goldens`` writes these.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import trials
from captures import read_pairs

from traceq.analysis.base.assumptions import MEASURED_SPREAD
from traceq.linter.config import Config
from traceq.linter.engine import lint
from traceq.linter.pack import load_rules
from traceq.linter.savings import Savings
from traceq.linter.view import View
from traceq.model.finding import Fix, Severity
from traceq.model.recording import Recording

if TYPE_CHECKING:
    from collections.abc import Sequence

    from captures import Pair

    from traceq.model.finding import Finding
    from traceq.model.trace import Trace

FILES = ("pairs", "pairs_held_out", "pairs_models")
RESULTS = Path(__file__).with_name("savings.json")
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
        """True if the measured time is in the range."""
        return self.low <= self.true <= self.high

    @property
    def cells(self) -> tuple[str, str, str]:
        """The figures of a row."""
        limits = f"{self.low:.2f} to {self.high:.2f}" + ("" if self.inside else " !")
        return f"{self.likely:.2f}", f"{self.off:+.0%}", limits


@dataclass(frozen=True)
class Result:
    """Prediction of a pair."""

    file: str
    """File that has it."""
    pair: str
    """The name of the sick program."""
    bound: str
    after: Said
    """The step after the fixes, with the measured step known."""
    after_alone: Said
    """The same of the trace alone."""
    before_alone: Said
    """The step before them, of the trace alone."""

    @property
    def row(self) -> tuple[str, ...]:
        """The cells of its row."""
        before = f"{self.before_alone.true:.2f}"
        return (
            *(self.pair, self.bound, before, f"{self.after.true:.2f}"),
            *(*self.after.cells, *self.after_alone.cells),
        )


@dataclass(frozen=True)
class Compared:
    """A pair with its findings."""

    result: Result
    worst: tuple[Finding, ...]


def _findings(trace: Trace, step_ns: int | None) -> tuple[tuple[Finding, ...], str]:
    recording = Recording("", trace, step_ns=step_ns)
    outcome = lint([recording], load_rules(), Config()).outcomes[0]
    return outcome.findings, outcome.bound.by if outcome.bound else ""


def repaired(findings: Sequence[Finding], fixes: Sequence[str]) -> list[Finding]:
    """Return the findings that a twin repairs, which names their codes or repairs all.

    Of minor ones whose fix leaves kernels as they are, all work goes.
    """
    if not fixes:
        return [
            finding for finding in findings if finding.severity is not Severity.info
        ]
    named = [finding for finding in findings if finding.code in fixes]
    return [
        replace(finding, fixes=(Fix(kernels=finding.kernels, ops=finding.ops),))
        if finding.minor
        and finding.kernels.difference(*(fix.kernels for fix in finding.fixes))
        else finding
        for finding in named
    ]


def _left(trace: Trace, step_ns: int | None, pair: Pair) -> tuple[Said, str]:
    """Return what is said to be left of a step after the fixes, and its bound."""
    findings, bound = _findings(trace, step_ns)
    fixed = repaired(findings, pair.fixes)
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
        view.replay.run(scale=scale).step_ns / _MS for scale in view.calibration.scales
    ]
    # The measured step itself is known no better.
    low, high = min(steps) * (1 - MEASURED_SPREAD), max(steps) * (1 + MEASURED_SPREAD)
    return Said(steps[0], low, high, true)


def compared(file: str, pair: Pair) -> Compared:
    """Lint the sick program of a pair, and compare what is said with what was."""
    trace = pair.captures.load(pair.sick)
    step_ns = pair.captures.step_ns(pair.sick)
    after, bound = _left(trace, step_ns, pair)
    findings, _ = _findings(trace, step_ns)
    result = Result(
        file,
        pair.sick,
        bound,
        after,
        _left(trace, None, pair)[0],
        _before_alone(trace, pair.captures.step_ms[pair.sick]),
    )
    return Compared(
        result,
        tuple(finding for finding in findings if finding.severity != Severity.info),
    )


def _row(texts: tuple[str, ...]) -> str:
    first, *others = texts
    cells = [first.ljust(_WIDTHS[0])]
    cells += [
        text.rjust(width) for text, width in zip(others, _WIDTHS[1:], strict=True)
    ]
    return " ".join(cells)


def _totals(name: str, predictions: Sequence[Said]) -> str:
    off = [abs(prediction.off) for prediction in predictions]

    def share(of: Sequence[bool]) -> str:
        return f"{sum(of) / len(of):.0%}"

    return (
        f"  {name:<34} off by {statistics.median(off):4.0%} at the median,"
        f" {max(off):4.0%} at most; {share([error <= 0.2 for error in off])} within"
        f" 20%, {share([error <= 0.3 for error in off])} within 30%;"
        f" in the range {share([prediction.inside for prediction in predictions])}"
    )


def _report(title: str, results: Sequence[Result]) -> None:
    if not results:
        return
    print(f"{title}, {len(results)} pairs")
    print(
        _totals("after the fixes, step measured", [result.after for result in results])
    )
    print(
        _totals(
            "after the fixes, trace alone", [result.after_alone for result in results]
        )
    )
    print(
        _totals("before them, trace alone", [result.before_alone for result in results])
    )


def _compare(path: Path) -> list[Result]:
    print(path)
    print(_row(_HEAD))
    results = []
    for pair in read_pairs(path):
        one = compared(path.stem, pair)
        results.append(one.result)
        worst = " ".join(f"{it.code} {it.saves_ns / _MS:.2f}" for it in one.worst[:6])
        print(_row(one.result.row), worst, flush=True)
    return results


def _report_all(results: Sequence[Result]) -> None:
    for bound in ("gpu", "host"):
        _report(
            f"{bound}-bound", [result for result in results if result.bound == bound]
        )


def write_results(results: Sequence[Result]) -> None:
    """Keep what was found, in microseconds."""
    rows = [asdict(result) for result in results]
    for row in rows:
        for key in ("after", "after_alone", "before_alone"):
            row[key] = {name: round(ms, 3) for name, ms in row[key].items()}
    lines = ",\n".join(json.dumps(item) for item in rows)
    RESULTS.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def read_results() -> list[Result]:
    """Return what was found last."""
    return [
        Result(
            load["file"],
            load["pair"],
            load["bound"],
            *(Said(**load[key]) for key in ("after", "after_alone", "before_alone")),
        )
        for load in json.loads(RESULTS.read_text(encoding="utf-8"))
    ]


# Tables of docs/savings.md.


def accuracy(results: Sequence[Result]) -> str:
    """Return how good the step after the fixes is, as a table in Markdown."""
    head = ("", "pairs", "median error", "largest", "within 30%", "truth in the range")
    lines = [(*head, "from the trace alone"), ("---",) * 7]
    for title, files in (
        ("models of others", FILES[2:]),
        ("first two files", FILES[:2]),
    ):
        for name, bound in (("GPU", "gpu"), ("host", "host")):
            some = [
                result
                for result in results
                if result.file in files and result.bound == bound
            ]
            off = [abs(result.after.off) for result in some]
            alone = [abs(result.after_alone.off) for result in some]
            lines.append(
                (
                    f"{title}, {name}-bound",
                    str(len(some)),
                    f"{statistics.median(off):.0%}",
                    f"{max(off):.0%}",
                    str(sum(value <= 0.3 for value in off)),
                    str(sum(result.after.inside for result in some)),
                    f"{statistics.median(alone):.0%}, largest {max(alone):.0%}",
                )
            )
    return _table(lines)


def estimated(results: Sequence[Result]) -> str:
    """Return how good the step before the fixes is, of the trace alone."""
    gpu, host = (
        [abs(result.before_alone.off) for result in results if result.bound == bound]
        for bound in ("gpu", "host")
    )
    return (
        "The step without the profiler, estimated from the trace alone, has a median"
        f" error of\n{statistics.median(gpu):.1%} in GPU-bound steps, {max(gpu):.0%} at"
        f" most, and of {statistics.median(host):.0%} in host-bound ones,"
        f" {max(host):.0%} at most.\n"
    )


def each_pair(results: Sequence[Result]) -> str:
    """Return the steps of each pair in ms, the worst error first, as a table."""
    lines = [
        ("program", "bound by", "before", "after", "predicted", "range", "error"),
        ("---",) * 7,
    ]
    for result in sorted(results, key=lambda one: -abs(one.after.off)):
        likely, off, limits = result.after.cells
        before, true = f"{result.before_alone.true:.2f}", f"{result.after.true:.2f}"
        lines.append((result.pair, result.bound, before, true, likely, limits, off))
    return _table(lines)


def _table(lines: Sequence[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    tried = [Path(item) for item in sys.argv[1:] if trials.is_trial(Path(item))]
    if tried:  # files of `traceq try`, of which none is of pairs
        print(*trials.report(tried), sep="\n")
        sys.exit()
    everything: list[Result] = []
    for argument in sys.argv[1:]:
        of_file = _compare(Path(argument))
        _report_all(of_file)
        everything += of_file
    if len(sys.argv) > 2:
        print("all files")
        _report_all(everything)
    if {result.file for result in everything} == {*FILES}:
        write_results(everything)
