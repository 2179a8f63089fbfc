"""Comparison of fixtures with their expectations, and of new runs with fixtures."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from msgspec import structs

from traceq.check.budgets import (
    Budgets,
    breaches,
    budgets_for,
    read_budgets,
    write_budgets,
)
from traceq.check.difference import Difference
from traceq.check.expected import Expected, expected, read_expected, write_expected
from traceq.check.fixture import BUDGETS, CPU, FINDINGS, Fixture, read_fixture
from traceq.check.numbers import NOISY, Numbers, numbers
from traceq.check.paths import with_short_paths
from traceq.check.whole import Whole, read_whole
from traceq.common.atomic_files import write_files
from traceq.common.units import amount, number, size
from traceq.errors import TraceqError
from traceq.formats.fixture_origin import ORIGIN
from traceq.linter.engine import lint
from traceq.linter.same_finding import extent, growth, matched

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from traceq.linter.config import Config
    from traceq.linter.pack import Rules
    from traceq.linter.same_finding import Extent
    from traceq.model.finding import Finding, Severity
    from traceq.model.lint_report import RecordingReport
    from traceq.model.recording import Recording


@dataclass(frozen=True)
class FixtureResult:
    """Check result of one fixture."""

    folder: Path
    differences: tuple[Difference, ...]
    findings: int = 0
    """Number of expected findings."""
    budgets: int = 0
    """Number of budgets."""
    written: tuple[str, ...] = ()
    """Files that were written again."""
    ran_on: str | None = None
    """Device that its program ran on, where it was run: cuda or cpu."""
    compared: bool = True
    """True if it was compared with anything."""
    unable: bool = False
    """It should have been compared, and could not be."""
    linted: bool = True
    """True if its committed trace was linted."""
    not_run: str | None = None
    """The reason that its program was not run; none if that was not considered."""

    @property
    def fails(self) -> bool:
        """True if it fails the check."""
        failing = any(difference.fails for difference in self.differences)
        return not self.written and (self.unable or failing)


# A host that stops for no known reason, and ops that are slow wherever they are.
_STOPS, _SLOW_OPS = "HST004", "HST002"
_NOT_WRITTEN = Difference("missing", "so --update has written nothing")
_ONLY_CPU = Difference(
    "skipped", f"it has only {CPU}, which traceq check --run compares", fails=False
)


def check(
    folder: Path, rules: Rules, config: Config, *, update: bool = False, cache: bool
) -> FixtureResult:
    """Lint a fixture and compare with what is expected of it.

    With ``update`` what is found becomes what is expected; what is wrong with the
    fixture itself stays wrong.
    """
    try:
        fixture = read_fixture(folder)
        if fixture.cpu_only:
            return FixtureResult(folder, (_ONLY_CPU,), compared=False, linted=False)
        outcome, recording = _linted(
            fixture.recording(
                own=config.own_code, steps_by=config.steps_by, cache=cache
            ),
            rules,
            config,
        )
        values = numbers(recording, fixture.graph_breaks)
    except TraceqError as error:
        return FixtureResult(folder, (Difference("error", str(error)),))
    return as_expected(fixture, outcome, values, update=update)


def as_expected(
    fixture: Fixture, outcome: RecordingReport, values: Numbers, *, update: bool = False
) -> FixtureResult:
    """Compare what was found in a fixture with what is expected of it."""
    folder = fixture.folder
    unfit = (*_origin(fixture), *_crashes(outcome))
    findings = expected(outcome.findings)
    try:
        run = read_whole(fixture.origin, str(folder / ORIGIN)).numbers
        expectation, budget = _read(folder, update=update)
    except TraceqError as error:
        return FixtureResult(folder, (*unfit, Difference("error", str(error))))
    if update and unfit:
        return FixtureResult(folder, (*unfit, _NOT_WRITTEN))
    if update:
        wanted = budgets_for(values, budget, run)
        written = _update(folder, findings, wanted)
        # Without an expectation, all that is found is new.
        expectation, budget = expectation or (), budget or wanted
    else:
        written = ()
    differences = (
        *unfit,
        *_expectation(expectation, findings),
        *_budgets(budget, values),
    )
    return FixtureResult(folder, differences, len(findings), len(budget or ()), written)


@dataclass(frozen=True)
class NewRun:
    """A run to compare with a fixture."""

    outcome: RecordingReport
    numbers: Numbers
    ignored: Collection[str] = ()
    """Budgets that do not apply to it."""


def check_against(
    folder: Path, new: Recording, rules: Rules, config: Config
) -> FixtureResult:
    """Compare a new run with a fixture: only what is worse fails the check."""
    try:
        fixture = read_fixture(folder)
        expectation, budget = expected_findings(folder), budgets_of(folder)
        run = read_whole(fixture.origin, str(folder / ORIGIN))
    except TraceqError as error:
        return FixtureResult(folder, (Difference("error", str(error)),))
    if expectation is None or not budget:
        return FixtureResult(
            folder, (*_expectation(expectation, ()), *_budgets(budget, Numbers({})))
        )
    outcome, recording = _linted(new, rules, config)
    outcome = with_short_paths(outcome, recording)
    notes, ignored = _incomparable(fixture, recording)
    result = no_worse(
        folder,
        (expectation, budget),
        NewRun(outcome, numbers(recording), ignored),
        fail_on=config.fail_on,
        run=run,
    )
    return replace(result, differences=(*result.differences, *notes))


def no_worse(
    folder: Path,
    wanted: tuple[Sequence[Expected], Budgets],
    new: NewRun,
    *,
    fail_on: Severity,
    run: Whole | None = None,
) -> FixtureResult:
    """Compare what was found in a new run with what is expected: more fails it.

    ``run`` is the run that the fixture was made from, in some steps of which there may
    be more than in the fixture.
    """
    expectation, budget = wanted
    seen = run.findings if run else {}
    return FixtureResult(
        folder,
        (
            *_crashes(new.outcome),
            *_changes(expectation, new.outcome, fail_on, seen),
            *(
                Difference("budget", breach.text, fails=breach.worse)
                for breach in breaches(budget, new.numbers, new.ignored)
            ),
        ),
        len(expectation),
        len(budget),
    )


def _linted(
    recording: Recording, rules: Rules, config: Config
) -> tuple[RecordingReport, Recording]:
    # The cost of a finding depends on the machine; the finding itself does not.
    everything = structs.replace(config, min_cost_us=0)
    return lint([recording], rules, everything).outcomes[0], recording


def _read(
    folder: Path, *, update: bool
) -> tuple[tuple[Expected, ...] | None, Budgets | None]:
    """Return the expected findings; None if they are missing, or replaced anyway."""
    try:
        expectation = expected_findings(folder)
    except TraceqError:
        if not update:
            raise
        expectation = None
    try:
        return expectation, budgets_of(folder)
    except TraceqError:
        if not update:
            raise
        return expectation, None


def expected_findings(folder: Path) -> tuple[Expected, ...] | None:
    """Return the findings that are expected of a fixture; None if that is not said."""
    file = folder / FINDINGS
    return read_expected(file) if file.is_file() else None


def budgets_of(folder: Path) -> Budgets | None:
    """Return the budgets of a fixture; None if it has no file of them."""
    file = folder / BUDGETS
    return read_budgets(file) if file.is_file() else None


def _origin(fixture: Fixture) -> Iterator[Difference]:
    if not fixture.origin:
        yield Difference("missing", f"{ORIGIN}: write how the fixture was made")
    elif not str(fixture.origin.get("program", "")).strip():
        text = f'{ORIGIN} does not name the program: write program = "..." into it'
        yield Difference("missing", text)


def _crashes(outcome: RecordingReport) -> Iterator[Difference]:
    for rule in outcome.crashed:
        yield Difference("error", f"{rule.code} {rule.name}: {rule.error}")


def _expectation(
    expectation: Sequence[Expected] | None, findings: Iterable[Expected]
) -> Iterator[Difference]:
    """Yield the differences between the findings and the expected ones."""
    if expectation is None:
        text = f"{FINDINGS}: write it with --update, and read it before you commit"
        yield Difference("missing", text)
        return
    there, wanted = Counter(findings), Counter(expectation)
    new = sorted((there - wanted).elements(), key=lambda element: element.order)
    missing = sorted((wanted - there).elements(), key=lambda element: element.order)
    for item in new:
        other = next(
            (old for old in missing if old.fingerprint == item.fingerprint), None
        )
        if other is None:
            yield Difference("new", item.message, item)
        else:
            missing.remove(other)
            yield Difference("changed", _changed(other, item), item)
    for item in missing:
        yield Difference("gone", item.message, item)


def _changed(old: Expected, new: Expected) -> str:
    """Return the fields of a finding that differ, with both values."""
    before, after = _fields(old), _fields(new)
    parts = [
        f"{name} was {before[name]}, is {after[name]}"
        for name in before
        if before[name] != after[name]
    ]
    wanted, there = _evidence(old), _evidence(new)
    parts += [
        f"{label} was {wanted.get(label, 'absent')}, is {there.get(label, 'absent')}"
        for label in {**wanted, **there}
        if wanted.get(label) != there.get(label)
    ]
    return "; ".join(parts) or "its evidence is in another order"


def _fields(one: Expected) -> dict[str, object]:
    return {
        **asdict(one.place),
        "subject": one.subject,
        "count": one.count,
        "memory": size(one.cost_bytes),
    }


def _evidence(one: Expected) -> dict[str, str]:
    """Return the evidence of a finding in a few words, by label."""
    by_label: dict[str, list[str]] = {}
    for entry in one.evidence:
        value = "" if entry.value is None else amount(entry.value, entry.unit)
        often = "" if entry.count is None else f"×{number(entry.count)}"
        text = " ".join(filter(None, (entry.name, value, often)))
        by_label.setdefault(entry.label, []).append(text or "measured")
    return {label: ", ".join(texts) for label, texts in by_label.items()}


def _budgets(budgets: Budgets | None, counted: Numbers) -> Iterator[Difference]:
    if not budgets:
        text = f"budgets in {BUDGETS}: write them with --update, and read them"
        yield Difference("missing", text)
        return
    # A trace does not change: less than the budget is as wrong as more.
    for breach in breaches(budgets, counted):
        yield Difference("budget", breach.text)


def _update(
    folder: Path, findings: Sequence[Expected], budgets: Budgets
) -> tuple[str, ...]:
    """Write what is expected from now on; return the names of files that changed."""
    text = write_budgets(budgets)
    return write_changed(
        folder, {FINDINGS: write_expected(findings), BUDGETS: text.encode()}
    )


def write_changed(folder: Path, contents: Mapping[str, bytes]) -> tuple[str, ...]:
    """Write files whose content differs; return their names."""
    new = {
        folder / name: content
        for name, content in contents.items()
        if _content(folder / name) != content
    }
    write_files(new)
    return tuple(file.name for file in new)


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


def _changes(
    expectation: Iterable[Expected],
    outcome: RecordingReport,
    fail_on: Severity,
    seen: Mapping[str, Extent],
) -> Iterator[Difference]:
    """Yield the findings that a new run has more or less of, line numbers aside.

    ``seen`` is how much there was of findings in steps that the fixture has not.
    """
    for old, new in matched(expectation, outcome.findings):
        if not new:
            yield Difference("gone", old[0].message, old[0], fails=False)
            continue
        serious = max(finding.severity.rank for finding in new) >= fail_on.rank
        serious &= not all(map(_is_by_chance, new))
        first, *_ = expected(new)
        most = seen.get(first.fingerprint)
        if not old and most is None:
            yield Difference("new", first.message, first, fails=serious)
            continue
        after = extent(new)
        before = extent(old) if old else most or after
        change = growth(before, after, outcome.step_ns)
        if change == "grown" and most:
            before = most
            change = growth(before, after, outcome.step_ns)
            change = "same" if change == "shrunk" else change
        if change != "same":
            text = _became(before, after)
            worse = change == "grown"
            yield Difference("changed", text, first, fails=worse and serious)


def _is_by_chance(finding: Finding) -> bool:
    """Return whether the machine did it, not the program: it may do it again or not."""
    return finding.code == _STOPS or (
        finding.code == _SLOW_OPS and finding.place.file is None
    )


def _became(before: Extent, after: Extent) -> str:
    if before.cost_bytes != after.cost_bytes:
        return f"{size(before.cost_bytes)} became {size(after.cost_bytes)}"
    return f"{before.count:,} times a step became {after.count:,}"


def _incomparable(
    fixture: Fixture, new: Recording
) -> tuple[list[Difference], tuple[str, ...]]:
    """Return the budgets that do not apply to a new run, with the reasons."""
    if new.trace is None:
        return [], NOISY
    gpu, device = fixture.origin.get("gpu"), new.trace.devices.filter("used")["name"]
    if len(device) and gpu != device[0]:
        text = (
            f"times are not compared: {device[0]}, not {gpu or 'a GPU that is known'}"
        )
        return [Difference("budget", text, fails=False)], NOISY
    if (fixture.step_ns is None) != (new.step_ns is None):
        text = "step-ms is not compared: one was measured without the profiler"
        return [Difference("budget", text, fails=False)], ("step-ms",)
    return [], ()
