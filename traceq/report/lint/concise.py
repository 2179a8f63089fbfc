"""Findings, one line each, for editors and for grep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.common.safe_text import printable
from traceq.model.finding import Place
from traceq.report.base.text import styled
from traceq.report.lint import content as words

if TYPE_CHECKING:
    from traceq.model.finding import Finding
    from traceq.model.lint_report import RecordingReport, Report


def render(report: Report, *, color: bool = False) -> str:
    """Return ``file:line:column: CODE message; cost`` for each finding.

    What has no line stands where the program begins, else at line 1 of the recording.
    """
    lines = []
    for outcome in report.outcomes:
        for finding in outcome.findings:
            cost = words.cost(finding, outcome)
            level = words.SEVERITY_COLORS[finding.severity]
            code = styled(finding.code, level, color=color)
            lines.append(
                f"{_at(finding, outcome)}: {code} {printable(finding.message)}"
                + (f"; {cost}" if cost else "")
            )
        lines += [f"{words.title(outcome)}: {note}" for note in words.notes(outcome)]
        last = (words.step_kinds(outcome), words.idle(outcome), words.verdict(outcome))
        for text in filter(None, last):
            lines.append(f"{words.title(outcome)}: {text}")
    lines += words.unused(report)
    return "\n".join(lines) + "\n"


def _at(finding: Finding, outcome: RecordingReport) -> str:
    """Return file, line and column: where the code of the line begins, if known."""
    place = finding.place
    at = place if place.source else outcome.entry or Place(outcome.name, 1)
    line = at.lines[0] if at.lines else 1
    frame = finding.frame
    text = ""
    if frame and at is place and frame.first <= line < frame.first + len(frame.lines):
        text = frame.lines[line - frame.first]
    column = len(text) - len(text.lstrip()) + 1
    return f"{printable(at.source or '')}:{line}:{column}"
