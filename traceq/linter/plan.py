"""Continued plan: findings that save time only once others are fixed.

A fix of the GPU's work saves nothing while the host bounds the step, and much once the
host's fixes are made. After those that matter now, everything that is left is priced
again in the new state, until nothing saves more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from traceq.common.progress import report_progress
from traceq.linter.minor import WORTH_FIXING, covered, with_rewrite
from traceq.linter.savings import to_fix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceq.linter.rule import Rule
    from traceq.linter.savings import Savings
    from traceq.model.finding import Finding

# A plan ends where nothing saves more than this share of the step that is left.
# Heuristic threshold: two runs of one program differ as much.
WORTH_GOING_ON = 0.02
# What saves time only once others are fixed is the least sure: it matters from this
# share of the step as it is. Heuristic threshold.
WORTH_LATER = 0.03
_MOST_LATER = 8
# A single fix that makes way for this part of the saving is the one that does.
_MOST_OF_IT = 0.5


def with_covered(
    findings: Sequence[Finding], rules: Mapping[str, Rule], savings: Savings
) -> list[Finding]:
    """Return findings, with those minor of which another removes the same.

    Of a loop that is rewritten the waits and copies inside go, too: they save time
    alone, and next to none once the loop's finding is fixed. An edit of a line is not
    minor beside a rewrite, which not everybody makes: it names that one.
    """
    made: list[Finding] = []
    marked = []
    for finding in findings:
        may = to_fix([finding]) and _may(finding, rules) and not finding.residual
        marked.append(_beside(finding, made, savings) if may else finding)
        if may and not marked[-1].minor:
            made.append(finding)
    return sorted(marked, key=lambda one: bool(one.minor))


def _beside(finding: Finding, made: Sequence[Finding], savings: Savings) -> Finding:
    """Return a finding as these leave it: minor if one leaves next to nothing of it."""
    rewrite = None
    for other in made:
        if not savings.shares(finding, other):
            continue
        left = savings.saved_after(finding, [other])
        if left >= WORTH_FIXING * savings.step_after([other]):
            continue
        if (finding.effort, other.effort) != ("edit", "rewrite"):
            return covered(finding, other.code, left)
        rewrite = rewrite or other
    return with_rewrite(finding, rewrite.code) if rewrite else finding


def with_later(
    findings: Sequence[Finding], rules: Mapping[str, Rule], savings: Savings
) -> list[Finding]:
    """Return findings, worst first, with those that save time later after the others.

    These have in ``after`` the codes that are to be fixed before, and save what they do
    then.
    """
    plan = to_fix(findings)
    if not plan:
        return list(findings)
    others = [
        finding
        for finding in findings
        if finding.minor
        and _may(finding, rules)
        and not _rewritten(finding, plan, savings)
    ]
    made, later = [*plan], list[tuple["Finding", "Finding"]]()
    while others and len(later) < _MOST_LATER:
        report_progress("plan", len(later), _MOST_LATER)
        worth = WORTH_GOING_ON * savings.step_after(made)
        worth = max(worth, WORTH_LATER * savings.step_ns)
        others = [other for other in others if _removes(other, worth)]
        priced = [(savings.saved_after(other, made), other) for other in others]
        saved, best = max(priced, key=lambda pair: pair[0], default=(0, None))
        if best is None or saved < worth:
            break
        later.append((best, _later(best, plan, made, savings)))
        made.append(best)
        others = [other for other in others if other is not best]
    before = {id(finding) for finding, _ in later}
    left = [finding for finding in findings if id(finding) not in before]
    regular = [finding for finding in left if not finding.minor]
    minor = [finding for finding in left if finding.minor]
    return [*regular, *(finding for _, finding in later), *minor]


def _rewritten(finding: Finding, plan: Sequence[Finding], savings: Savings) -> bool:
    """Return whether the fix of another at the same line removes most of this one's."""
    here = _at(finding)
    return here is not None and any(
        _at(other) == here and savings.shares(finding, other) for other in plan
    )


def _at(finding: Finding) -> tuple[str, int | None, str | None] | None:
    place = finding.place
    return (place.source, place.line, place.function) if place.source else None


def _may(finding: Finding, rules: Mapping[str, Rule]) -> bool:
    """Return whether a minor finding may save time later."""
    priced = rules[finding.code].priced and not finding.would_matter_on_gpu
    return priced and bool(finding.fixes) and not finding.cost_bytes


def _removes(finding: Finding, worth: float) -> bool:
    """Return whether a fix removes that much time of GPU and host, or a wait."""
    removed = finding.kernel_ns + finding.host_ns
    return removed >= worth or any(len(fix.syncs) for fix in finding.fixes)


def _later(
    finding: Finding,
    plan: Sequence[Finding],
    made: Sequence[Finding],
    savings: Savings,
) -> Finding:
    """Return a finding with its savings after others, and the codes of those."""
    priced = savings.of(finding, made)
    enough = _MOST_OF_IT * priced.saves_ns
    first = next(
        (
            earlier.code
            for earlier in plan
            if savings.saved_after(finding, [earlier]) >= enough
        ),
        None,
    )
    codes = (
        (first,) if first else tuple(dict.fromkeys(earlier.code for earlier in made))
    )
    return replace(
        priced,
        saves_alone_ns=finding.saves_ns,
        after=codes,
        minor="",
        doubt=finding.doubt or "later",
    )
