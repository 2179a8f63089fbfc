"""Findings of two recordings side by side: new, gone, worse, better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from traceq.finding import Finding
    from traceq.lint.engine import Outcome

State = Literal["new", "worse", "better", "gone", "same"]
STATES: tuple[State, ...] = ("new", "worse", "better", "gone")

# Costs of one finding in two runs of one program differ by less.
_GROWN = 0.1
_OF_STEP = 0.02


@dataclass(frozen=True)
class FindingChange:
    """A finding before, after, or in both."""

    state: State
    before: Finding | None
    after: Finding | None

    @property
    def finding(self) -> Finding:
        """The finding as it is, or was last."""
        found = self.after or self.before
        if found is None:
            msg = "a change is of a finding"
            raise ValueError(msg)
        return found


@dataclass(frozen=True)
class FindingChanges:
    """What became of the findings."""

    changes: tuple[FindingChange, ...]
    """New ones first, then those that are worse, better and gone."""
    same: int
    """How many are as they were."""
    blind: tuple[str, ...]
    """Codes of rules that could look on one side only, and found something there."""
    failed: tuple[str, ...] = ()
    """Codes of rules that failed, so that nobody knows what they would have found."""


def compare_findings(before: Outcome, after: Outcome) -> FindingChanges:
    """Return what became of the findings, those of rules that looked on both sides."""
    unseen = {rule.code for one in (before, after) for rule in one.skipped}
    failed = {rule.code for one in (before, after) for rule in one.crashed}
    unseen |= failed
    old = [one for one in before.findings if one.code not in unseen]
    new = [one for one in after.findings if one.code not in unseen]
    found: list[FindingChange] = []
    keys: list[Callable[[Finding], Hashable]] = [
        lambda one: (one.fingerprint, one.message),
        lambda one: one.fingerprint,
    ]
    if _stacks(before) != _stacks(after):
        # Without stacks nothing has a place, so the subject has to do.
        keys.append(lambda one: (one.code, one.subject))
    for key in keys:
        for finding in list(old):
            match = next((one for one in new if key(one) == key(finding)), None)
            if match is not None:
                old.remove(finding)
                new.remove(match)
                state = _state(finding, match, before, after)
                found.append(FindingChange(state, finding, match))
    found += [FindingChange("new", None, one) for one in new]
    found += [FindingChange("gone", one, None) for one in old]
    changed = [one for one in found if one.state != "same"]
    return FindingChanges(
        tuple(sorted(changed, key=_order)),
        len(found) - len(changed),
        tuple(
            sorted(unseen & {one.code for one in (*before.findings, *after.findings)})
        ),
        tuple(sorted(failed)),
    )


def _stacks(outcome: Outcome) -> bool:
    return bool(outcome.facts and outcome.facts.stacks)


def _state(old: Finding, new: Finding, before: Outcome, after: Outcome) -> State:
    if old.cost_bytes or new.cost_bytes:
        cost = (old.cost_bytes, new.cost_bytes)
        least = 0.0
    else:
        bounds = [one.bound for one in (before, after) if one.bound]
        unclear = any(bound.by == "unclear" for bound in bounds)
        cost = (old.gpu_ns, new.gpu_ns) if unclear else (old.saves_ns, new.saves_ns)
        least = _OF_STEP * max((bound.step_ns for bound in bounds), default=0)
    grown = cost[1] - cost[0]
    if abs(grown) <= max(_GROWN * max(cost), least):
        return "same"
    return "worse" if grown > 0 else "better"


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
