"""A job as Markdown, for a pull request or a note."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.report.base.markdown import escaped, section
from traceq.report.lint.markdown import findings
from traceq.report.ranks.content import content

if TYPE_CHECKING:
    from traceq.model.lint_report import Report
    from traceq.ranks.analysis import Analysis


def render(analysis: Analysis, report: Report) -> str:
    """Return the verdict, the facts, the tables, the heat map and the findings."""
    words = content(analysis)
    parts = [f"**{escaped(words.verdict)}**\n", section(words.screen)]
    if words.heat:
        label = max(len(name) for name, _ in words.heat)
        lines = [f"{name:>{label}} │{line}│" for name, line in words.heat]
        parts.append("Waiting for others, over the window:\n")
        parts.append("\n".join(["```text", *lines, "```"]) + "\n")
    parts += [f"- {escaped(note)}" for note in words.notes]
    parts += ["", *(line for outcome in report.outcomes for line in findings(outcome))]
    return "\n".join(parts).rstrip() + "\n"
