"""Hold fixtures to what is expected of them, and new runs to their fixtures."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from traceq.check.budgets import (
    Budgets,
    breaches,
    budgets_for,
    read_budgets,
    write_budgets,
)
from traceq.check.expected import Expected, expected, read_expected, write_expected
from traceq.check.fixture import BUDGETS, FINDINGS, ORIGIN, Fixture, read_fixture
from traceq.check.numbers import WOBBLY, Numbers, numbers
from traceq.errors import TraceqError, UsageError
from traceq.lint.engine import lint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from traceq.finding import Finding
    from traceq.lint.config import Config
    from traceq.lint.engine import Outcome
    from traceq.lint.pack import Rules
    from traceq.recording import Recording

# A count may differ a little where the program's data decide.
_GROWN = 1.1


@dataclass(frozen=True)
class Difference:
    """One thing that is not as expected."""

    kind: str
    """new, gone, changed, budget, missing or failed."""
    text: str
    finding: Expected | None = None
    """The finding that it is about."""
    red: bool = True
    """It fails the check; otherwise it is good to know."""


@dataclass(frozen=True)
class Result:
    """What the check has to say of one fixture."""

    folder: Path
    differences: tuple[Difference, ...]
    findings: int = 0
    """How many are expected."""
    budgets: int = 0
    """How many there are."""
    written: tuple[str, ...] = ()
    """Files that were written anew."""

    @property
    def red(self) -> bool:
        """Whether it fails the check."""
        return not self.written and any(one.red for one in self.differences)


def check(
    folder: Path, rules: Rules, config: Config, *, update: bool = False, cache: bool
) -> Result:
    """Lint a fixture and compare with what is expected of it.

    With ``update`` what is found becomes what is expected; what is wrong with the
    fixture itself stays wrong.
    """
    try:
        fixture = read_fixture(folder)
        outcome, recording = _linted(fixture.recording(cache=cache), rules, config)
        counted = numbers(recording)
    except TraceqError as error:
        return Result(folder, (Difference("failed", str(error)),))
    unfit = (*_origin(fixture), *_crashes(outcome))
    found = expected(outcome.findings)
    try:
        known = _known(folder)
        budget = _budget(folder)
    except TraceqError as error:
        if not update:
            return Result(folder, (*unfit, Difference("failed", str(error))))
        known = budget = None
    if update and not unfit:
        written = _update(folder, found, counted, budget)
        # Without an expectation, all that is found is new.
        known, budget = known or (), budget or budgets_for(counted)
    else:
        written = ()
    differences = (*unfit, *_expectation(known, found), *_budgets(budget, counted))
    return Result(folder, differences, len(found), len(budget or ()), written)


def check_against(folder: Path, new: Recording, rules: Rules, config: Config) -> Result:
    """Compare a new run with a fixture: what is worse fails, what is better is said."""
    try:
        fixture = read_fixture(folder)
        known, budget = _known(folder), _budget(folder)
    except TraceqError as error:
        return Result(folder, (Difference("failed", str(error)),))
    if known is None or budget is None:
        return Result(
            folder, (*_expectation(known, ()), *_budgets(budget, Numbers({})))
        )
    outcome, recording = _linted(new, rules, config)
    notes, ignored = _incomparable(fixture, recording)
    return Result(
        folder,
        (
            *_crashes(outcome),
            *_changes(known, outcome.findings, config),
            *(
                Difference("budget", one.text, red=one.worse)
                for one in breaches(budget, numbers(recording), ignored)
            ),
            *notes,
        ),
        len(known),
        len(budget),
    )


def _linted(
    recording: Recording, rules: Rules, config: Config
) -> tuple[Outcome, Recording]:
    # What a finding costs differs from machine to machine; that it is there does not.
    everything = replace(config, min_cost_us=0)
    return lint([recording], rules, everything).outcomes[0], recording


def _known(folder: Path) -> tuple[Expected, ...] | None:
    file = folder / FINDINGS
    return read_expected(file) if file.is_file() else None


def _budget(folder: Path) -> Budgets | None:
    file = folder / BUDGETS
    budgets = read_budgets(file) if file.is_file() else Budgets()
    return budgets if len(budgets) else None


def _origin(fixture: Fixture) -> Iterator[Difference]:
    if not fixture.origin:
        yield Difference("missing", f"{ORIGIN}: say how the fixture was made")
    elif not str(fixture.origin.get("program", "")).strip():
        text = f"{ORIGIN} does not say what the program is: program = ..."
        yield Difference("missing", text)


def _crashes(outcome: Outcome) -> Iterator[Difference]:
    for rule in outcome.crashed:
        yield Difference("failed", f"{rule.code} {rule.name}: {rule.error}")


def _expectation(
    known: Sequence[Expected] | None, found: Iterable[Expected]
) -> Iterator[Difference]:
    """Yield how what is found differs from what is expected."""
    if known is None:
        text = f"{FINDINGS}: write it with --update, and read it before you commit it"
        yield Difference("missing", text)
        return
    there, wanted = Counter(found), Counter(known)
    new = sorted((there - wanted).elements(), key=lambda one: one.order)
    gone = sorted((wanted - there).elements(), key=lambda one: one.order)
    for one in new:
        other = next((old for old in gone if old.fingerprint == one.fingerprint), None)
        if other is None:
            yield Difference("new", one.message, one)
        else:
            gone.remove(other)
            yield Difference("changed", _changed(other, one), one)
    for one in gone:
        yield Difference("gone", one.message, one)


def _changed(old: Expected, new: Expected) -> str:
    names = ("message", "count", "file", "line", "function", "module", "subject")
    return "; ".join(
        f"{name} was {getattr(old, name)}, is {getattr(new, name)}"
        for name in names
        if getattr(old, name) != getattr(new, name)
    )


def _budgets(budgets: Budgets | None, counted: Numbers) -> Iterator[Difference]:
    if budgets is None:
        text = f"budgets in {BUDGETS}: write them with --update, and read them"
        yield Difference("missing", text)
        return
    # A trace does not change: to take less is as wrong as to take more.
    for one in breaches(budgets, counted):
        yield Difference("budget", one.text)


def _update(
    folder: Path,
    found: Sequence[Expected],
    counted: Numbers,
    budgets: Budgets | None,
) -> tuple[str, ...]:
    """Write what is expected from now on; return the names of files that changed."""
    contents = {
        FINDINGS: write_expected(found),
        BUDGETS: write_budgets(budgets_for(counted, budgets)).encode(),
    }
    written = []
    for name, content in contents.items():
        file = folder / name
        try:
            if not file.is_file() or file.read_bytes() != content:
                file.write_bytes(content)
                written.append(name)
        except OSError as error:
            msg = f"{file} cannot be written: {error.strerror or error}"
            raise UsageError(msg) from None
    return tuple(written)


def _changes(
    known: Iterable[Expected], findings: Sequence[Finding], config: Config
) -> Iterator[Difference]:
    """Yield what a new run has more or less of, line numbers aside."""
    before: dict[str, list[Expected]] = defaultdict(list)
    for one in known:
        before[one.fingerprint].append(one)
    after: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        after[finding.fingerprint].append(finding)
    for mark, mine in after.items():
        serious = max(one.severity.rank for one in mine) >= config.fail_on.rank
        first, *_ = expected(mine)
        old = sum(one.count for one in before[mark]) if mark in before else 0
        count = sum(one.count for one in mine)
        if mark not in before:
            yield Difference("new", first.message, first, red=serious)
        elif count > old * _GROWN:
            text = f"{old:,} times a step became {count:,}"
            yield Difference("changed", text, first, red=serious)
        elif count < old / _GROWN:
            text = f"{old:,} times a step became {count:,}"
            yield Difference("changed", text, first, red=False)
    for mark, theirs in before.items():
        if mark not in after:
            yield Difference("gone", theirs[0].message, theirs[0], red=False)


def _incomparable(
    fixture: Fixture, new: Recording
) -> tuple[list[Difference], tuple[str, ...]]:
    """Say which budgets a new run cannot be held to."""
    if new.trace is None:
        return [], WOBBLY
    gpu, device = fixture.origin.get("gpu"), new.trace.devices.filter("used")["name"]
    if gpu and len(device) and gpu != device[0]:
        text = f"times are not compared: {device[0]} against {gpu}"
        return [Difference("budget", text, red=False)], WOBBLY
    if (fixture.step_ns is None) != (new.step_ns is None):
        text = "step-ms is not compared: one was measured without the profiler"
        return [Difference("budget", text, red=False)], ("step-ms",)
    return [], ()
