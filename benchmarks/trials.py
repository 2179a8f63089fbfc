"""The ledger of trials: what was predicted, what was measured, what helped.

    python benchmarks/savings.py benchmarks/ledger/trials/*.json

A file is what `traceq try` writes, or a row of the ledger (benchmarks/ledger/add.py). A
remedy counts if it was measured to be faster, slower or no different, and a finding
predicted what it saves.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceq.analysis.base.assumptions import SAVING_ERROR_OF_STEP

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TOOL = "traceq try"
LEDGER = Path(__file__).with_name("ledger") / "trials"
TARGET = 30  # programs
_COUNTED = ("faster", "slower", "no difference")
_SAFE = ("exact", "rounding")
_NO_TIME = "there is too little time to compile"
_ENOUGH = 5  # predictions to fit a range to
_LOW, _HIGH = 0, -1  # of nine deciles


def is_trial(file: Path) -> bool:
    """Return whether a file is what `traceq try` writes."""
    content = json.loads(file.read_text(encoding="utf-8"))
    return isinstance(content, dict) and content.get("tool") == TOOL


def read(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the trials of these files, by program."""
    trials = []
    for file in files:
        trial = json.loads(file.read_text(encoding="utf-8"))
        name = file.parent.name if file.name == "try.json" else file.stem
        trials.append({"program": name, **trial})
    return sorted(trials, key=lambda one: str(one["program"]))


def ledger() -> list[dict[str, Any]]:
    """Return the trials that are committed."""
    return read(LEDGER.glob("*.json"))


# Predictions.


@dataclass(frozen=True)
class Predicted:
    """A saving that was predicted and measured, in ms."""

    program: str
    rule: str
    bound: str
    step: float
    said: float
    low: float
    high: float
    measured: float

    @property
    def error(self) -> float:
        """Predicted less measured saving, as a share of the step."""
        return (self.said - self.measured) / self.step

    @property
    def inside(self) -> bool:
        """True if the measured saving is in the predicted range."""
        return self.low <= max(0.0, self.measured) <= self.high

    @property
    def relative(self) -> float:
        """Measured less predicted saving, as ranges are fitted to it."""
        return (self.measured - self.said) / self.base

    @property
    def base(self) -> float:
        """Base of the errors: the saving, and a part of the step."""
        return self.said + SAVING_ERROR_OF_STEP * self.step


def predicted(trials: Iterable[dict[str, Any]]) -> list[Predicted]:
    """Return what was predicted of remedies whose measurement is conclusive."""
    result = []
    for trial in trials:
        step = (trial.get("as_it_is") or {}).get("ms")
        for remedy in trial.get("remedies", []):
            said = remedy["predicted"]
            if step and said and remedy["n"] and remedy["outcome"] in _COUNTED:
                low, high = (said.get(key, said["ms"]) for key in ("low_ms", "high_ms"))
                bound = str(said.get("bound") or "unknown")
                names = (str(trial["program"]), said["rule"], bound)
                times = (step, said["ms"], low, high, -remedy["ms"])
                result.append(Predicted(*names, *times))
    return result


def by_rule(
    predictions: Iterable[Predicted],
) -> dict[tuple[str, str], list[Predicted]]:
    """Return predictions by rule, and by what bounds the step."""
    rules: dict[tuple[str, str], list[Predicted]] = {}
    for item in predictions:
        rules.setdefault((item.rule, item.bound), []).append(item)
    return dict(sorted(rules.items()))


def validated(predictions: Sequence[Predicted], bound: str) -> str:
    """Fit a range on half of the programs; return how it does on the other half."""
    some = [item for item in predictions if item.bound == bound]
    programs = sorted({item.program for item in some})
    fitted = [item for item in some if programs.index(item.program) % 2 == 0]
    others = [item for item in some if programs.index(item.program) % 2 == 1]
    if len(fitted) < _ENOUGH or len(others) < _ENOUGH:
        return (
            f"{bound}-bound: too few to fit one on half of the programs"
            f" (predictions: {len(some)}, programs: {len(programs)})"
        )
    deciles = statistics.quantiles([item.relative for item in fitted], n=10)
    inside = 0
    for other in others:
        low = max(0.0, other.said + deciles[_LOW] * other.base)
        high = other.said + deciles[_HIGH] * other.base
        inside += low <= max(0.0, other.measured) <= high
    return (
        f"{bound}-bound: errors of {deciles[_LOW]:+.2f} to {deciles[_HIGH]:+.2f},"
        f" fitted on {len(fitted)} predictions, contain the measured saving of"
        f" {inside} of {len(others)} predictions of other programs"
    )


# Programs.


@dataclass(frozen=True)
class Program:
    """Result of a trial of a program, as far as it is proved."""

    name: str
    bound: str
    step: float
    minutes: float
    state: str
    noise: float
    remedies: tuple[str, ...]
    """Remedies that are proved to help together; none if none is."""
    share: float
    """Change of the step with them, as a share of it: below zero."""
    unproved: tuple[str, ...]
    """Remedies that were faster, without a recording that shows their effect."""
    undecided: tuple[str, ...]
    """Remedies that may apply and help: the noise was too high, or the time short."""
    asked: int
    """Remedies that were asked for."""
    tried: int
    """Remedies that apply and were measured."""

    @property
    def speed_up(self) -> float:
        """Speed-up by the remedies, as a factor."""
        return 1 / (1 + self.share)

    @property
    def without_help(self) -> bool:
        """True if no remedy that was asked for helps, and that is proved."""
        return not self.remedies and not self.unproved and not self.undecided


def program(trial: dict[str, Any]) -> Program:
    """Return what a trial proved."""
    entries = trial["remedies"]
    safe = {entry["remedy"]: entry for entry in entries if entry["class"] in _SAFE}
    faster = {name: one for name, one in safe.items() if one["outcome"] == "faster"}
    proved = {
        name: one
        for name, one in faster.items()
        if (one.get("proof") or {}).get("applied")
    }
    step = trial["as_it_is"]["ms"]
    retained = trial.get("kept") or {}
    names: tuple[str, ...] = tuple(retained.get("remedies", ()))
    share = retained.get("share")
    if not names or share is None or not set(names) <= set(proved):
        best = min(proved, key=lambda name: proved[name]["ms"], default=None)
        names = () if best is None else (best,)
        share = 0.0 if best is None else proved[best]["ms"] / step
    return Program(
        name=str(trial["program"]),
        bound=trial.get("bound") or "unknown",
        step=step,
        minutes=trial["minutes"],
        state=trial["state"],
        noise=trial["control"]["smallest_ms"] / step,
        remedies=names,
        share=share,
        unproved=tuple(name for name in faster if name not in proved),
        undecided=tuple(name for name, one in safe.items() if _is_open(one)),
        asked=len(trial["asked"]),
        tried=sum(bool(entry["n"]) for entry in safe.values()),
    )


def _is_open(entry: dict[str, Any]) -> bool:
    return entry["outcome"] == "inconclusive" or entry["why"] == _NO_TIME


# Text.


def report(files: Iterable[Path]) -> list[str]:
    """Return errors by rule, what fitted ranges are worth, and what helped."""
    trials = read(files)
    predictions = predicted(trials)
    rows = [
        f"{'rule':<8} {'bound':<8} {'n':>3} {'median':>8} {'worst':>8} {'in range':>9}"
    ]
    for (rule, bound), some in by_rule(predictions).items():
        middle, worst, inside = _errors(some)
        rows.append(
            f"{rule:<8} {bound:<8} {len(some):>3} {middle:>8.1%} {worst:>+8.1%}"
            f" {inside:>9}"
        )
    rows += ["", *(validated(predictions, bound) for bound in ("gpu", "host")), ""]
    complete = [trial for trial in trials if trial.get("control")]
    return [*rows, *front(list(map(program, complete))).splitlines()]


def _errors(some: Sequence[Predicted]) -> tuple[float, float, str]:
    """Return the median error, the worst, and how many are in their range."""
    errors = [item.error for item in some]
    inside = f"{sum(item.inside for item in some)} of {len(some)}"
    return statistics.median(map(abs, errors)), max(errors, key=abs), inside


def rules_table(trials: Iterable[dict[str, Any]]) -> str:
    """Return the errors by rule as a table in Markdown, and the fitted ranges."""
    predictions = predicted(trials)
    head = ("rule", "bound by", "trials", "median error", "worst", "in the range")
    lines: list[tuple[str, ...]] = [head, ("---",) * len(head)]
    groups = {
        **by_rule(predictions),
        **{
            ("**all**", bound): [item for item in predictions if item.bound == bound]
            for bound in ("gpu", "host")
        },
    }
    for (rule, bound), some in groups.items():
        if some:
            middle, worst, inside = _errors(some)
            figures = (f"{middle:.1%}", f"{worst:+.1%}", inside)
            lines.append((rule, bound, str(len(some)), *figures))
    ranges = "; ".join(validated(predictions, bound) for bound in ("gpu", "host"))
    return f"{_table(lines)}\nRanges, {ranges}.\n"


def trials_table(programs: Sequence[Program]) -> str:
    """Return each trial with its length, its noise, and what it left open."""
    head = (
        *("program", "bound by", "ms", "minutes", "the trial ended as", "noise"),
        *("measured", "faster", "undecided"),
    )
    lines: list[tuple[str, ...]] = [head, ("---",) * len(head)]
    for item in programs:
        faster = [*item.remedies, *(f"{name} (unproved)" for name in item.unproved)]
        lines.append(
            (
                *(item.name, item.bound, f"{item.step:.3g}", f"{item.minutes:g}"),
                *(item.state, f"{item.noise:.1%}", f"{item.tried} of {item.asked}"),
                *(", ".join(faster), ", ".join(item.undecided)),
            )
        )
    return _table(lines)


def front(programs: Sequence[Program]) -> str:
    """Return what was proved, in two paragraphs."""
    if not programs:
        return "No program was tried yet.\n"
    helped = sorted(
        (item for item in programs if item.remedies), key=lambda one: one.share
    )
    middle = statistics.median(item.speed_up for item in programs)
    grows = (
        f", the first of {TARGET} that are planned" if len(programs) < TARGET else ""
    )
    lengths = [item.minutes for item in programs]
    parts = [
        f"`traceq try` was run on {len(programs)} public programs on an H200{grows},"
        f" for {min(lengths):g} to {max(lengths):g} minutes each. Remedies that are"
        f" exact or change rounding only make {len(helped) or 'none'} of them faster,"
        f" proved by a control and a recording; the median over all {len(programs)} is"
        f" {middle:.2f}×, where the others count as 1."
    ]
    if helped:
        head = ("program", "bound by", "step", "speed-up", "remedies")
        lines = [head, ("---",) * len(head)]
        lines += [
            (
                *(item.name, item.bound, f"{item.step:.3g} ms"),
                *(f"{item.speed_up:.2f}×", ", ".join(item.remedies)),
            )
            for item in helped
        ]
        parts.append(_table(lines).rstrip())
    rest = [item for item in programs if not item.remedies]
    groups = (
        (
            "Nothing that was tried helps",
            [item.name for item in rest if item.without_help],
        ),
        (
            "Faster, but without a recording that proves it",
            [
                f"{item.name} ({', '.join(item.unproved)})"
                for item in rest
                if item.unproved
            ],
        ),
        (
            "Undecided, as the noise was too high or the time too short",
            [item.name for item in rest if item.undecided and not item.unproved],
        ),
    )
    sentences = [f"{title}: {', '.join(names)}." for title, names in groups if names]
    return "\n\n".join([*parts, " ".join(sentences)]).rstrip() + "\n"


def _table(lines: Sequence[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
