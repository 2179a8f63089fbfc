"""Findings as a code-quality report of GitLab, which marks lines of a change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.model.finding import Place, Severity
from traceq.report.base.gitlab import Issue, document
from traceq.report.lint import content as words

if TYPE_CHECKING:
    from traceq.model.finding import Finding
    from traceq.model.lint_report import RecordingReport, Report

LEVELS = {
    Severity.info: "info",
    Severity.warning: "major",
    Severity.error: "critical",
}


def render(report: Report) -> str:
    """Return a list of issues; rules that crashed are among them."""
    return document(
        [
            *(
                _issue(finding, outcome)
                for outcome in report.outcomes
                for finding in outcome.findings
            ),
            *(
                Issue(f"{rule.code} crashed: {rule.error}", rule.code, outcome.name)
                for outcome in report.outcomes
                for rule in outcome.crashed
            ),
        ]
    )


def _issue(finding: Finding, outcome: RecordingReport) -> Issue:
    cost = words.cost(finding, outcome)
    text = f"{finding.message}: {cost}" if cost else finding.message
    # A finding without a line stands where the program begins, else at the trace.
    at = finding.place if finding.place.file else outcome.entry or Place(outcome.name)
    first, _ = at.lines or (1, 1)
    return Issue(
        f"{text}. Fix: {finding.advice}" if finding.advice else text,
        finding.code,
        at.source or outcome.name,
        first,
        LEVELS[finding.severity],
        finding.fingerprint,
    )
