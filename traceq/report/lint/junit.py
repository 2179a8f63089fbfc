"""Findings as JUnit XML: a test each, which fails at or above ``--fail-on``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.report.base.junit import Case, document
from traceq.report.lint import content as words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.model.finding import Finding
    from traceq.model.lint_report import RecordingReport, Report


def render(report: Report) -> str:
    """Return a suite for each recording; without findings it has one test."""
    return document(
        [
            (words.title(outcome), list(_cases(outcome, report)))
            for outcome in report.outcomes
        ]
    )


def _cases(outcome: RecordingReport, report: Report) -> Iterator[Case]:
    name = words.title(outcome)
    for finding in outcome.findings:
        fails = finding.severity.rank >= report.fail_on.rank
        yield _case(finding, outcome, fails=fails)
    for rule in outcome.crashed:
        yield Case(f"{rule.code} {rule.name}", name, "error", rule.error)
    for codes, reason in words.skipped(outcome):
        yield Case(codes, name, "skipped", reason)
    if not outcome.findings and not outcome.crashed:
        yield Case("no findings", name)


def _case(finding: Finding, outcome: RecordingReport, *, fails: bool) -> Case:
    cost = words.cost(finding, outcome)
    message = f"{finding.message}; {cost}" if cost else finding.message
    first, _ = finding.place.lines or (None, None)
    return Case(
        f"{finding.code} {finding.name}",
        words.title(outcome),
        "failure" if fails else "passed",
        message,
        f"fix: {finding.advice}" if finding.advice else "",
        finding.place.source,
        first,
    )
