"""The findings of one rule in full, or the reason why there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.common.safe_text import printable
from traceq.common.words import counted
from traceq.report.base.screen import line_width
from traceq.report.base.text import at, bold, wrapped
from traceq.report.lint import content as words
from traceq.report.lint.full import block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.model.lint_report import RecordingReport, Report


def render(
    report: Report, code: str, *, selected: bool, width: int | None, color: bool
) -> str:
    """Return the findings of a rule; ``selected`` is false for one left out."""
    wide = line_width(width)
    blocks = []
    for outcome in report.outcomes:
        lines = [*_findings(outcome, code, wide, color=color)]
        if not lines:
            lines = wrapped(_without(outcome, code, selected=selected), wide)
        if len(report.outcomes) > 1:
            lines = [bold(words.title(outcome), color=color), *lines]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _findings(
    outcome: RecordingReport, code: str, width: int, *, color: bool
) -> Iterator[str]:
    """Yield a block for each finding of the rule, an empty line between them."""
    matching = [item for item in outcome.findings if item.code == code]
    for number, finding in enumerate(matching):
        if number:
            yield ""
        yield from block(finding, outcome, width, color=color)
        if finding.minor:
            yield from wrapped(f"minor: {finding.minor}", width, first="  ")


def _without(outcome: RecordingReport, code: str, *, selected: bool) -> str:
    """Return why a rule has no finding: it did not run, or it found nothing."""
    if not selected:
        return f"{code} did not run: the configuration or the command leaves it out"
    for rule in (*outcome.skipped, *outcome.not_applicable):
        if rule.code == code:
            return f"{code} did not run: {printable(rule.reason)}"
    for crash in outcome.crashed:
        if crash.code == code:
            return f"{code} crashed: {printable(crash.error)}"
    for allowed in outcome.allowed:
        if allowed.finding.code == code:
            where = at(allowed.finding.place)
            return f"{code} is allowed{where}: {printable(allowed.reason)}"
    hidden = outcome.below_min_cost + outcome.in_baseline
    text = f"{code} ran and has no finding here"
    if not hidden:
        return text
    return f"{text}; the baseline or min-cost-us hides {counted(hidden, 'finding')}"
