"""Findings, one line each, for editors and for grep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.common.safe_text import printable
from traceq.report.base.text import styled
from traceq.report.lint import content as words

if TYPE_CHECKING:
    from traceq.model.lint_report import Report


def render(report: Report, *, color: bool = False) -> str:
    """Return ``place: severity CODE message; cost`` for each finding."""
    lines = []
    for outcome in report.outcomes:
        for finding in outcome.findings:
            where = finding.place
            at = where.source or where.module
            if where.source and where.lines:
                at = ":".join(
                    (where.source, "-".join(map(str, sorted({*where.lines}))))
                )
            cost = words.cost(finding, outcome)
            level = finding.severity
            severity = styled(level.value, words.SEVERITY_COLORS[level], color=color)
            lines.append(
                f"{printable(at or outcome.name)}: {severity}"
                f" {finding.code} {printable(finding.message)}"
                + (f"; {cost}" if cost else "")
            )
        lines += [f"{words.title(outcome)}: {note}" for note in words.notes(outcome)]
        last = (words.step_kinds(outcome), words.idle(outcome), words.verdict(outcome))
        for text in filter(None, last):
            lines.append(f"{words.title(outcome)}: {text}")
    lines += words.unused(report)
    return "\n".join(lines) + "\n"
