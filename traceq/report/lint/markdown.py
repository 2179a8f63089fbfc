"""Findings as Markdown, for a comment on a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from traceq.common.safe_text import printable
from traceq.model.finding import Severity
from traceq.report.base.markdown import code, escaped, fenced
from traceq.report.base.text import where
from traceq.report.lint import content as words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.model.finding import Finding, Place
    from traceq.model.lint_report import RecordingReport, Report

_SIGN = {
    Severity.info: "info",
    Severity.warning: "**warning**",
    Severity.error: "**error**",
}


def render(report: Report, base: str = "") -> str:
    """Return a section for each recording: a table, then the details folded away.

    Links to files begin with ``base``, the address of the repository's files.
    """
    lines: list[str] = []
    for outcome in report.outcomes:
        lines += [*_section(outcome, base), ""]
    lines += [f"- {escaped(text)}" for text in words.unused(report)]
    return "\n".join(lines).rstrip() + "\n"


def _section(outcome: RecordingReport, base: str) -> Iterator[str]:
    yield f"### {escaped(words.short_name(outcome))}: {words.verdict(outcome)}"
    yield ""
    yield escaped(words.facts(outcome))
    more = (
        words.step_kinds(outcome),
        words.together(outcome),
        words.idle(outcome),
        words.gpu(outcome),
    )
    for text in filter(None, more):
        yield ""
        yield escaped(text)
    yield from findings(outcome, base)
    for codes, reason in words.skipped(outcome):
        yield ""
        yield f"Skipped: {codes}: {escaped(reason)}"
    for note in words.notes(outcome):
        yield ""
        yield escaped(note)


def findings(outcome: RecordingReport, base: str = "") -> Iterator[str]:
    """Yield a table of the findings, then the details of each folded away."""
    if outcome.findings:
        yield ""
        yield "| | finding | where | cost |"
        yield "| --- | --- | --- | --- |"
    for finding in outcome.findings:
        cells = (
            _SIGN[finding.severity],
            f"{finding.code} {escaped(printable(finding.message))}",
            _where(finding.place, base),
            escaped(words.cost(finding, outcome)),
        )
        yield f"| {' | '.join(cells)} |"
    for finding in outcome.findings:
        if not finding.minor:
            yield from _details(finding)


def _details(finding: Finding) -> Iterator[str]:
    yield ""
    yield f"<details><summary>{finding.code} {finding.name}</summary>"
    yield ""
    yield escaped(printable(finding.message))
    if finding.frame:
        yield ""
        yield from fenced(words.code_lines(finding.frame))
    yield ""
    for entry in finding.evidence:
        yield f"- {escaped(printable(entry.label))}: {escaped(words.evidence(entry))}"
    if finding.advice:
        yield f"- **fix**: {escaped(printable(finding.advice))}"
    if finding.example:
        yield ""
        yield "For example:"
        yield ""
        yield from fenced(finding.example.splitlines(), "diff")
    yield ""
    yield "</details>"


def _where(place: Place, base: str) -> str:
    """Return a place: a link to the file where the repository has it, and code."""
    text = code(where(place)) if where(place) else ""
    if not place.path:
        return text
    anchor = f"#L{place.lines[0]}" if place.lines else ""
    return f"[{text}]({base}{quote(place.path)}{anchor})"
