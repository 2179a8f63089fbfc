"""First screen: bound of the step, its time by cause, findings, and the plan."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from traceq.report.base.columns import cells, cut_middle
from traceq.report.base.screen import line_width
from traceq.report.base.text import bold, styled, wrapped
from traceq.report.lint import content as words
from traceq.report.lint import cpu, several, short, step_bar
from traceq.report.lint.rows import row, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceq.model.lint_report import RecordingReport, Report

MOST_LINES = 29
"""Lines of the screen; one more names the packs of rules that ran."""
_MOST_MINOR = 5
# Findings that have their line however narrow the terminal is.
_LEAST_ROWS = 3


def render(report: Report, *, width: int | None, color: bool) -> str:
    """Return the screen of a recording, or the overview of several."""
    wide = line_width(width)
    unused = words.unused(report)
    if len(report.outcomes) == 1:
        lines = _screen(report.outcomes[0], unused, wide, color=color)
    elif not report.outcomes:
        lines = ["no recordings"]
    else:
        lines = several.screen(report.outcomes, unused, wide, MOST_LINES, color=color)
    return "\n".join(lines) + "\n"


def _screen(
    outcome: RecordingReport, unused: Sequence[str], width: int, *, color: bool
) -> list[str]:
    top = [*_top(outcome, width, color=color)]
    end = [*_end(outcome, unused, width, color=color)]
    plan = wrapped(short.plan(outcome), width)
    fixes = short.fixes(outcome.findings, width, color=color)
    # The titles of the table, the line that counts the rest, and three empty lines.
    slow = short.slow_steps(outcome, width)
    room = MOST_LINES - sum(map(len, (top, plan, fixes, slow, end))) - 5 - bool(slow)
    middle = _findings(outcome, room, width, color=color)
    middle += [bold(line, color=color) for line in plan]
    blocks = [block for block in (top, middle, fixes, slow, end) if block]
    return [line for block in blocks for line in ("", *block)][1:]


def _top(outcome: RecordingReport, width: int, *, color: bool) -> Iterator[str]:
    """Yield the name, the verdict and the bar."""
    name = words.title(outcome)
    yield name if cells(name) <= width else cut_middle(name, width)
    for line in wrapped(short.verdict(outcome), width):
        yield bold(line, color=color)
    yield from short.out_of_memory(outcome, width)
    bar = step_bar.lines(outcome.bound, width, color=color) if outcome.bound else []
    if text := short.step(outcome):
        yield ""
        yield from wrapped(text, width)
    yield from bar
    if outcome.cpu:
        yield from cpu.time_lines(outcome.cpu, width)


def _findings(
    outcome: RecordingReport, room: int, width: int, *, color: bool
) -> list[str]:
    """Return the table of findings; minor ones only if there are no others."""
    every = sorted(outcome.findings, key=lambda finding: bool(finding.minor))
    regular = sum(not finding.minor for finding in every)
    count = min(max(room, _LEAST_ROWS), regular or _MOST_MINOR)
    shown, left = every[:count], every[count:]
    if not shown:
        return []
    steps = _steps_after(outcome)
    rows = [row(finding, outcome, steps.get(id(finding))) for finding in shown]
    lines = table(rows, width, color=color)
    if text := short.more(left, shown):
        lines.append(styled(text, "dim", color=color))
    return lines


def _steps_after(outcome: RecordingReport) -> dict[int, int]:
    """Return the step with each finding fixed and those above it, by its identity."""
    steps: dict[int, int] = {}
    left = outcome.step_ns
    for finding in outcome.findings:
        if finding.saves_after_ns is None:
            continue
        left -= finding.saves_after_ns
        steps[id(finding)] = left
    return steps


def _end(
    outcome: RecordingReport, unused: Sequence[str], width: int, *, color: bool
) -> Iterator[str]:
    """Yield notes, the rules that ran, and the command for details."""
    yield from short.notes([*short.notes_of(outcome), *unused], width, color=color)
    yield short.rules(outcome, width)
    yield _details(outcome, width)


def _details(outcome: RecordingReport, width: int) -> str:
    """Return the command that prints more."""
    codes = [finding.code for finding in outcome.findings[:1]]
    one = "".join(f"; one finding: --explain {code}" for code in codes)
    text = f"details: traceq lint {shlex.quote(words.title(outcome))} -v{one}"
    return text if cells(text) <= width else f"details: -v{one}"
