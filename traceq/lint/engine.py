"""Run rules on what was recorded: skip with a reason, survive a crash, say the cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.errors import ConfigError
from traceq.finding import Evidence, Severity
from traceq.lint import suppress as allow
from traceq.lint.config import configured
from traceq.lint.rule import Need
from traceq.lint.savings import WORTH_FIXING, Savings
from traceq.lint.select import find_rule, selected
from traceq.lint.snapshot_view import Memory, highest, snapshot_views
from traceq.lint.view import View

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from traceq.analysis.replay.bottleneck import Bottleneck
    from traceq.analysis.replay.bound import Bound
    from traceq.finding import Finding
    from traceq.lint.config import Allow, Config
    from traceq.lint.pack import Rules
    from traceq.lint.rule import Rule
    from traceq.lint.savings import Together
    from traceq.lint.snapshot_view import SnapshotView
    from traceq.model.facts import Facts
    from traceq.recording import Recording


# A log may name a hundred graph breaks; the first few explain a finding.
_MOST_REASONS = 3

_NO_TRACE = "there is no trace"


@dataclass(frozen=True)
class Skipped:
    """A rule that could not look."""

    code: str
    name: str
    reason: str


@dataclass(frozen=True)
class Crashed:
    """A rule that failed, which says nothing about the trace."""

    code: str
    name: str
    error: str


@dataclass(frozen=True)
class Allowed:
    """A finding that is there on purpose."""

    finding: Finding
    reason: str


@dataclass(frozen=True)
class Outcome:
    """What lint has to say of one recording."""

    name: str
    """The path that was given."""
    facts: Facts | None
    bound: Bound | None
    bottleneck: Bottleneck | None
    steps: int
    """How many steps the averages are over."""
    step_ns: int
    """What a step takes: as measured, else as it likely does without the profiler."""
    findings: tuple[Finding, ...]
    """Worst first."""
    together: tuple[Together, ...]
    """What fixing the worst of them saves together."""
    cheap: int
    """Findings that cost less than the user wants to see."""
    skipped: tuple[Skipped, ...]
    crashed: tuple[Crashed, ...]
    allowed: tuple[Allowed, ...]
    checked: int
    """How many rules could look."""
    memory: Memory | None = None
    """The peak, where there is a memory snapshot."""
    known: int = 0
    """Findings that a baseline knows, and that have not grown."""


@dataclass(frozen=True)
class Report:
    """What lint has to say of all recordings."""

    outcomes: tuple[Outcome, ...]
    fail_on: Severity
    unused: tuple[Allow, ...] = ()
    """What the configuration allows and nothing was found of."""

    @property
    def failing(self) -> list[Finding]:
        """The findings that fail the run."""
        return [
            finding
            for outcome in self.outcomes
            for finding in outcome.findings
            if finding.severity.rank >= self.fail_on.rank
        ]

    @property
    def crashed(self) -> bool:
        """Whether a rule failed, so that what it looks for may be there."""
        return any(outcome.crashed for outcome in self.outcomes)


def lint(
    recordings: Iterable[Recording],
    rules: Rules,
    config: Config,
    *,
    brief: bool = False,
) -> Report:
    """Run the selected rules on each recording.

    Where only the findings are wanted it can be brief: without ranges, without what
    they save together and without what a step waits for.
    """
    chosen = selected(rules, config.select, config.ignore)
    if not chosen:
        msg = f"{config.file or 'the command line'} ignores all rules it selects"
        raise ConfigError(msg)
    ready = configured(rules, chosen, config)
    for entry in config.allow:
        find_rule(rules, entry.rule)
    used: set[Allow] = set()
    outcomes = [
        _lint(recording, ready, rules, config, used, brief=brief)
        for recording in recordings
    ]
    unused = [entry for entry in config.allow if entry not in used]
    return Report(tuple(outcomes), config.fail_on, tuple(unused))


def run_rule(
    rule: Rule,
    recording: Recording,
    view: View | None,
    memory: Sequence[SnapshotView] = (),
) -> list[Finding]:
    """Return what one rule finds, in an order that does not depend on the file's."""
    found: Iterable[Finding] = ()
    if Need.SNAPSHOT in rule.needs:
        found = _across_ranks(rule, memory)
    elif Need.LOG not in rule.needs and view is not None:
        found = rule.check(view)
    elif recording.log is not None:
        found = rule.check_log(recording.log)
    return sorted(_merged(found), key=_by_weight)


def _lint(  # noqa: PLR0913 - what a recording is looked at with
    recording: Recording,
    ready: Sequence[Rule],
    rules: Rules,
    config: Config,
    used: set[Allow],
    *,
    brief: bool,
) -> Outcome:
    view = View(recording.trace, recording.step_ns) if recording.trace else None
    memory = snapshot_views(recording)
    found: list[Finding] = []
    skipped: list[Skipped] = []
    crashed: list[Crashed] = []
    for rule in ready:
        reason = _why_not(rule, recording, view, memory)
        if reason:
            skipped.append(Skipped(rule.code, rule.name(), reason))
            continue
        try:
            found += run_rule(rule, recording, view, memory)
        except Exception as error:  # noqa: BLE001 - the other rules go on
            crashed.append(Crashed(rule.code, rule.name(), _first_line(error)))
    allowed: list[Allowed] = []
    kept: list[Finding] = []
    inside = allow.regions(view.trace) if view else None
    for finding in found:
        entry = allow.allowed_by(finding, config.allow, rules, recording.name)
        if entry:
            used.add(entry)
            allowed.append(Allowed(finding, entry.reason))
        elif view and inside is not None and allow.lies_in(finding, view.trace, inside):
            allowed.append(Allowed(finding, allow.IN_PROGRAM))
        else:
            kept.append(finding)
    by_code = {rule.code: rule for rule in ready}
    peak = highest(memory)
    savings = Savings(view, brief=brief) if view else None
    priced = []
    for one in _explained(kept):
        rule = by_code[one.code]
        try:
            priced.append(_priced(one, rule, savings, peak))
        except Exception as error:  # noqa: BLE001 - as above; the finding is there
            crashed.append(Crashed(rule.code, rule.name(), _first_line(error)))
            priced.append(replace(one, severity=Severity.info))
    shown = [
        one
        for one in priced
        if not by_code[one.code].priced
        or one.cost_bytes
        or one.saves_ns >= config.min_cost_us * 1000
    ]
    shown.sort(key=_by_weight)
    return Outcome(
        name=recording.name,
        facts=recording.trace.facts if recording.trace else None,
        bound=view.bound if view else None,
        bottleneck=view.bottleneck
        if view and view.trace.facts.gpu and not brief
        else None,
        steps=view.steps if view else 0,
        step_ns=round(savings.step_ns) if savings else 0,
        findings=tuple(shown),
        together=tuple(savings.together(_to_fix(shown)))
        if savings and not brief
        else (),
        cheap=len(priced) - len(shown),
        skipped=tuple(skipped),
        crashed=tuple(crashed),
        allowed=tuple(allowed),
        checked=len(ready) - len(skipped) - len(crashed),
        memory=peak,
    )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _why_not(
    rule: Rule,
    recording: Recording,
    view: View | None,
    memory: Sequence[SnapshotView],
) -> str:
    """Say why a rule cannot look; empty if it can."""
    if Need.LOG in rule.needs:
        return "" if recording.log is not None else Need.LOG.value
    if Need.SNAPSHOT in rule.needs:
        if not memory:
            return Need.SNAPSHOT.value
        # What one rank has is worth a look.
        return min(("; ".join(one.lacks(rule.needs)) for one in memory), key=len)
    if view is None:
        return _NO_TRACE
    missing = [
        need.value for need in Need if need in rule.needs and not view.meets(need)
    ]
    return "; ".join(missing)


def _across_ranks(rule: Rule, memory: Sequence[SnapshotView]) -> Iterator[Finding]:
    """Yield what is found in any rank once, as it is where it holds the most."""
    found: dict[tuple[str, str], list[tuple[int, Finding]]] = {}
    for view in memory:
        if not view.lacks(rule.needs):
            for finding in _merged(rule.check_snapshot(view)):
                # Ranks differ in bytes, and so in sentences, but not in lines.
                key = (finding.fingerprint, repr(finding.place))
                found.setdefault(key, []).append((view.rank, finding))
    for entries in found.values():
        rank, worst = max(entries, key=lambda entry: (entry[1].cost_bytes, -entry[0]))
        if len(memory) > 1:
            ranks = sorted({number for number, _ in entries})
            named = ", ".join(map(str, ranks))
            text = f"{named}; the most on {rank}" if len(ranks) > 1 else named
            worst = replace(worst, evidence=(*worst.evidence, Evidence("ranks", text)))
        yield worst


def _merged(found: Iterable[Finding]) -> Iterator[Finding]:
    """Make one of findings that say the same of the same place."""
    groups: dict[tuple[str, object, str], list[Finding]] = {}
    for finding in found:
        key = (finding.fingerprint, finding.place, finding.message)
        groups.setdefault(key, []).append(finding)
    for first, *others in groups.values():
        everything = [first, *others]
        yield replace(
            first,
            count=sum(one.count for one in everything),
            gpu_idle_ns=sum(one.gpu_idle_ns for one in everything),
            cost_bytes=sum(one.cost_bytes for one in everything),
            ops=first.ops.union(*(one.ops for one in others)),
            kernels=first.kernels.union(*(one.kernels for one in others)),
            calls=first.calls.union(*(one.calls for one in others)),
            fixes=tuple(fix for one in everything for fix in one.fixes),
            old=_joined_old([one.old for one in everything]),
        )


def _joined_old(given: Sequence[Any]) -> Any:  # noqa: ANN401 - goes soon
    known = [one for one in given if one is not None]
    if not known:
        return None
    spans = [one[3].select("start", "end") for one in known if one[3] is not None]
    return (
        sum(one[0] for one in known),
        sum(one[1] for one in known),
        frozenset().union(*(one[2] for one in known)),
        pl.concat(spans) if spans else None,
    )


def _explained(found: Sequence[Finding]) -> list[Finding]:
    """Give findings the lines of the log that explain them, and drop these as own."""
    codes = {finding.code for finding in found}
    reasons = [finding for finding in found if finding.explains & codes]
    kept = []
    for finding in found:
        if finding in reasons:
            continue
        mine = [reason for reason in reasons if finding.code in reason.explains]
        lines = [
            line
            for reason in mine[:_MOST_REASONS]
            for line in (Evidence("log", reason.message), *reason.evidence)
        ]
        kept.append(replace(finding, evidence=(*finding.evidence, *lines)))
    return kept


def _priced(
    finding: Finding, rule: Rule, savings: Savings | None, peak: Memory | None
) -> Finding:
    """Say what a finding costs, and if that matters."""
    if peak and Need.SNAPSHOT in rule.needs:
        minor = rule.priced and finding.cost_bytes < WORTH_FIXING * peak.reserved
        return replace(finding, severity=Severity.info) if minor else finding
    if savings is None:
        return finding
    finding = savings.removed(finding)
    if not rule.priced:
        return finding
    finding = savings.of(finding)
    if finding.saves_ns < WORTH_FIXING * savings.step_ns:
        return replace(finding, severity=Severity.info)
    return finding


def _to_fix(shown: Sequence[Finding]) -> list[Finding]:
    """Return the findings that save time, without those that only sum others up."""
    return [
        one for one in shown if one.severity is not Severity.info and one.saves_ns > 0
    ]


def _by_weight(finding: Finding) -> tuple[object, ...]:
    place = finding.place
    return (
        -finding.severity.rank,
        finding.residual,
        -finding.saves_ns,
        -finding.gpu_ns,
        -finding.host_ns,
        -finding.cost_bytes,
        finding.code,
        place.file or "",
        place.line or 0,
        place.module or "",
        finding.subject,
        finding.message,
    )
