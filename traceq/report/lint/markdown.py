"""Findings as Markdown, for a comment on a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.finding import Severity
from traceq.report.base.markdown import escaped
from traceq.report.base.text import printable, where
from traceq.report.lint import content as words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.finding import Finding
    from traceq.lint.engine import Outcome, Report

_SIGN = {
    Severity.info: "info",
    Severity.warning: "**warning**",
    Severity.error: "**error**",
}


def render(report: Report) -> str:
    """Return a section for each recording: a table, then the details folded away."""
    lines: list[str] = []
    for outcome in report.outcomes:
        lines += [*_section(outcome), ""]
    lines += [f"- {escaped(text)}" for text in words.unused(report)]
    return "\n".join(lines).rstrip() + "\n"


def _section(outcome: Outcome) -> Iterator[str]:
    yield f"### {escaped(words.short_name(outcome))}: {words.verdict(outcome)}"
    yield ""
    yield escaped(words.facts(outcome))
    for text in filter(None, (words.together(outcome), words.idle(outcome))):
        yield ""
        yield escaped(text)
    if outcome.findings:
        yield ""
        yield "| | finding | where | cost |"
        yield "| --- | --- | --- | --- |"
    for finding in outcome.findings:
        cells = (
            _SIGN[finding.severity],
            f"{finding.code} {escaped(printable(finding.message))}",
            escaped(where(finding.place)),
            escaped(words.cost(finding, outcome)),
        )
        yield f"| {' | '.join(cells)} |"
    for finding in outcome.findings:
        if finding.severity is not Severity.info:
            yield from _details(finding)
    for codes, reason in words.skipped(outcome):
        yield ""
        yield f"Skipped: {codes}: {escaped(reason)}"
    for note in words.notes(outcome):
        yield ""
        yield escaped(note)


def _details(finding: Finding) -> Iterator[str]:
    yield ""
    yield f"<details><summary>{finding.code} {finding.name}</summary>"
    yield ""
    for entry in finding.evidence:
        yield f"- {escaped(printable(entry.label))}: {escaped(words.evidence(entry))}"
    if finding.advice:
        yield f"- **fix**: {escaped(printable(finding.advice))}"
    yield ""
    yield "</details>"
