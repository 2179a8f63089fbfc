"""Findings as GitHub's workflow commands, which become annotations on a change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.common.safe_text import printable
from traceq.model.finding import Severity
from traceq.report.lint import content as words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.model.lint_report import Report

_COMMAND = {
    Severity.info: "notice",
    Severity.warning: "warning",
    Severity.error: "error",
}


def render(report: Report) -> str:
    """Return one command for each finding and each rule that crashed."""
    lines = []
    for outcome in report.outcomes:
        for finding in outcome.findings:
            first, last = finding.place.lines or (None, None)
            at = {"file": finding.place.source, "line": first}
            if last != first:
                at["endLine"] = last
            properties = {
                key: value for key, value in at.items() if value and at["file"]
            }
            properties["title"] = f"{finding.code} {finding.name}"
            text = finding.message
            if cost := words.cost(finding, outcome):
                text += f": {cost}"
            if finding.advice:
                text += f"; {finding.advice}"
            lines.append(command(_COMMAND[finding.severity], properties, text))
        lines += [
            command("error", {"title": f"{rule.code} crashed"}, rule.error)
            for rule in outcome.crashed
        ]
        # A file may be called as a command is, which acts only where a line begins.
        lines.append(f"traceq: {words.title(outcome)}: {words.verdict(outcome)}")
    return "\n".join(lines) + "\n"


def command(kind: str, properties: Mapping[str, object], text: str) -> str:
    """Return one command; nothing in it can begin another."""
    written = ",".join(
        f"{key}={_escaped(str(value)).replace(':', '%3A').replace(',', '%2C')}"
        for key, value in properties.items()
    )
    return f"::{kind} {written}::{_escaped(text)}"


def _escaped(text: str) -> str:
    return printable(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))
