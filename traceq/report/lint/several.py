"""The first screen of several recordings: a line each, the worst findings of all."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from traceq.common.safe_text import printable
from traceq.common.units import time
from traceq.common.words import counted
from traceq.linter.need import Need
from traceq.report.base.columns import Column, cut_middle, fitted
from traceq.report.base.content import telling_names
from traceq.report.base.text import bold, styled, wrapped
from traceq.report.lint import content as words
from traceq.report.lint import short
from traceq.report.lint.rows import cut_location, cut_text, location

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.model.finding import Finding
    from traceq.model.lint_report import RecordingReport

_LOCATION = 20
_RANKS = "these are ranks of a job: run traceq ranks on the traces of all of them"
_COLUMNS = (
    Column("", weight=3, cut=cut_middle),
    Column("step", number=True),
    Column("fixed", number=True),
    Column("bound"),
    Column("findings", number=True),
    Column("the largest", weight=6, cut=cut_text),
)


def screen(
    outcomes: Sequence[RecordingReport],
    unused: Sequence[str],
    width: int,
    most_lines: int,
    *,
    color: bool,
) -> list[str]:
    """Return the lines: a verdict, a row for each recording, what to fix first."""
    top = [bold(line, color=color) for line in wrapped(_verdict(outcomes), width)]
    end = _end(outcomes, unused, width, color=color)
    # The titles of the table, the line that counts the rest, and two empty lines.
    room = most_lines - len(top) - len(end) - 4
    names = telling_names([words.title(outcome) for outcome in outcomes])
    ranked = sorted(range(len(outcomes)), key=lambda at: -_saved(outcomes[at]))
    chosen = sorted(ranked[:room])
    rows = [_row(names[at], outcomes[at]) for at in chosen]
    titles, *lines = fitted(_COLUMNS, rows, width)[0]
    if len(outcomes) > room:
        left = f"+ {len(outcomes) - room} more that save less: -v"
        lines.append(styled(left, "dim", color=color))
    return [*top, "", styled(titles, "dim", color=color), *lines, "", *end]


def _verdict(outcomes: Sequence[RecordingReport]) -> str:
    by = Counter(filter(None, map(_bound, outcomes)))
    regular = [finding for outcome in outcomes for finding in _regular(outcome)]
    having = sum(1 for outcome in outcomes if _regular(outcome))
    bounds = ", ".join(f"{count} {what}" for what, count in by.most_common())
    text = f"{counted(len(outcomes), 'recording')}" + (f": {bounds}" if bounds else "")
    if not regular:
        return f"{text}; no findings"
    return f"{text}; {counted(len(regular), 'finding')} in {having} of them"


def _regular(outcome: RecordingReport) -> list[Finding]:
    return [finding for finding in outcome.findings if not finding.minor]


def _bound(outcome: RecordingReport) -> str:
    bound = outcome.bound
    if bound is None or bound.bottleneck is None:
        return "memory only" if bound is None and outcome.memory else "without GPU work"
    return "GPU-bound" if bound.by == "gpu" else "host-bound"


def _saved(outcome: RecordingReport) -> float:
    """Return the share of the step that all fixes save."""
    if not outcome.together or not outcome.step_ns:
        return 0.0
    return 1 - outcome.together[-1].step_ns / outcome.step_ns


def _row(name: str, outcome: RecordingReport) -> tuple[str, ...]:
    regular = _regular(outcome)
    largest = ""
    if regular:
        worst = max(regular, key=lambda finding: (finding.saves_ns, finding.cost_bytes))
        saves = time(worst.saves_ns) if words.saves_time(worst, outcome) else ""
        place = cut_location(location(worst.place), _LOCATION)
        parts = (worst.code, saves, place, printable(words.headline(worst)))
        largest = " ".join(filter(None, parts))
    return (
        name,
        time(outcome.step_ns) if outcome.step_ns else "",
        time(outcome.together[-1].step_ns) if outcome.together else "",
        _bound(outcome),
        str(len(regular)),
        largest,
    )


def _end(
    outcomes: Sequence[RecordingReport],
    unused: Sequence[str],
    width: int,
    *,
    color: bool,
) -> list[str]:
    findings = [finding for outcome in outcomes for finding in _regular(outcome)]
    findings.sort(key=lambda finding: (-finding.saves_ns, -finding.cost_bytes))
    several = {note: None for outcome in outcomes for note in short.notes_of(outcome)}
    lines = short.fixes(findings, width, color=color)
    lines += [""] if lines else []
    if any(
        rule.reason == Need.JOB.value
        for outcome in outcomes
        for rule in outcome.skipped
    ):
        several = {_RANKS: None} | several
    lines += short.notes([*several, *unused], width, color=color)
    skipped = {rule.code: rule for outcome in outcomes for rule in outcome.skipped}
    always = [
        rule
        for code, rule in skipped.items()
        if all(
            any(code == skipped_rule.code for skipped_rule in outcome.skipped)
            for outcome in outcomes
        )
    ]
    if always:
        text = f"{counted(len(always), 'rule')} skipped in all: {short.reasons(always)}"
        lines.append(cut_text(text, width))
    code = f"; one finding: --explain {findings[0].code}" if findings else ""
    return [*lines, f"details: -v{code}"]
