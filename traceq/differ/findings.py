"""Findings of two recordings side by side: new, gone, worse, better."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal

from traceq.linter.same_finding import Extent, growth, matched

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceq.linter.same_finding import Growth
    from traceq.model.finding import Finding
    from traceq.model.lint_report import RecordingReport

State = Literal["new", "worse", "better", "gone", "same"]
STATES: tuple[State, ...] = ("new", "worse", "better", "gone")


@dataclass(frozen=True)
class FindingChange:
    """A finding before, after, or in both."""

    state: State
    before: Finding | None
    after: Finding | None
    stepped: tuple[bool, bool] = (True, True)
    """For each side, True if times are per step, False if of the whole trace."""

    @property
    def finding(self) -> Finding:
        """The finding as it is, or was last."""
        latest = self.after or self.before
        if latest is None:
            msg = "a change is of a finding"
            raise ValueError(msg)
        return latest


@dataclass(frozen=True)
class FindingChanges:
    """Findings of two recordings, compared."""

    changes: tuple[FindingChange, ...]
    """New ones first, then those that are worse, better and gone."""
    same: int
    """Number of unchanged findings."""
    one_sided: tuple[str, ...]
    """Codes of rules that ran on one side only, and found something there."""
    crashed: tuple[str, ...] = ()
    """Codes of rules that crashed: their findings are unknown."""


def compare_findings(before: RecordingReport, after: RecordingReport) -> FindingChanges:
    """Return the changes of findings, by rules that ran on both sides."""
    crashed = {rule.code for side in (before, after) for rule in side.crashed}
    skipped = {rule.code for side in (before, after) for rule in side.skipped}
    unseen = crashed | skipped
    groups = matched(
        [finding for finding in before.findings if finding.code not in unseen],
        [finding for finding in after.findings if finding.code not in unseen],
        by_place=_has_stacks(before) == _has_stacks(after),
    )
    changes = [
        FindingChange(
            _state(pair, before, after), *pair, (_stepped(before), _stepped(after))
        )
        for old, new in groups
        for pair in _pairs(old, new)
    ]
    changed = [change for change in changes if change.state != "same"]
    return FindingChanges(
        tuple(sorted(changed, key=_order)),
        len(changes) - len(changed),
        tuple(
            sorted(
                unseen
                & {finding.code for finding in (*before.findings, *after.findings)}
            )
        ),
        tuple(sorted(crashed)),
    )


def _stepped(outcome: RecordingReport) -> bool:
    return outcome.bound is None or outcome.bound.stepped


def _has_stacks(outcome: RecordingReport) -> bool:
    return bool(outcome.facts and outcome.facts.stacks)


def _pairs(
    old: Sequence[Finding], new: Sequence[Finding]
) -> Iterator[tuple[Finding | None, Finding | None]]:
    """Pair what is the same finding: at the same line first, then in order."""
    before, after = list(old), list(new)
    for finding in old:
        match = next((other for other in after if other.place == finding.place), None)
        if match is not None:
            before.remove(finding)
            after.remove(match)
            yield finding, match
    yield from zip_longest(before, after)


def _state(
    pair: tuple[Finding | None, Finding | None],
    before: RecordingReport,
    after: RecordingReport,
) -> State:
    old, new = pair
    if old is None or new is None:
        return "gone" if new is None else "new"
    bounds = [side.bound for side in (before, after) if side.bound]
    unclear = not all(bound.sure for bound in bounds)
    step_ns = max((bound.step_ns for bound in bounds), default=0)
    change = growth(
        _extent(old, unclear=unclear), _extent(new, unclear=unclear), step_ns
    )
    states: dict[Growth, State] = {"grown": "worse", "shrunk": "better"}
    return states.get(change, "same")


def _extent(finding: Finding, *, unclear: bool) -> Extent:
    # The savings of a fix depend on the bound of the step; its subject does not.
    time = finding.gpu_ns if unclear else finding.saves_ns
    return Extent(finding.count, finding.cost_bytes, time)


def _order(change: FindingChange) -> tuple[object, ...]:
    finding = change.finding
    return (
        STATES.index(change.state),
        -finding.severity.rank,
        -finding.saves_ns,
        -finding.cost_bytes,
        finding.code,
        finding.message,
    )
