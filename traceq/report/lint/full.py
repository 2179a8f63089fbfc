"""Findings for the terminal, a block each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.common.safe_text import printable
from traceq.model.finding import Severity
from traceq.report.base.screen import line_width
from traceq.report.base.text import bold, styled, where, wrapped
from traceq.report.bound import colored_bar
from traceq.report.lint import content as words
from traceq.report.lint import cpu
from traceq.report.lint.content import SEVERITY_COLORS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.model.finding import Finding
    from traceq.model.lint_report import RecordingReport, Report

_LABEL = 10
_EXAMPLE = "e.g."


def render(
    report: Report, *, width: int | None, color: bool, verbose: bool = False
) -> str:
    """Return the whole report, wrapped to a width; if verbose, minor ones in full."""
    width = line_width(width)
    blocks = [
        "\n".join(_outcome(outcome, width, color=color, verbose=verbose))
        for outcome in report.outcomes
    ]
    blocks += ["\n".join(_wrapped(text, width)) for text in words.unused(report)]
    return "\n\n".join(blocks) + "\n"


def _outcome(
    outcome: RecordingReport, width: int, *, color: bool, verbose: bool
) -> Iterator[str]:
    yield bold(words.title(outcome), color=color)
    yield from _wrapped(words.facts(outcome), width)
    if text := words.step_kinds(outcome):
        yield from _wrapped(text, width)
    bar = _wrapped(words.bar(outcome), width)
    yield from (colored_bar(line, color=color) for line in bar[:1])
    yield from bar[1:]
    if outcome.cpu:
        yield from cpu.time_lines(outcome.cpu, width)
    yield from findings(outcome, width, color=color, verbose=verbose)
    if outcome.skipped:
        yield ""
        yield "Skipped:"
        for codes, reason in words.skipped(outcome):
            yield from _wrapped(f"{codes}: {reason}", width, indent=2)
    for note in words.notes(outcome):
        yield ""
        yield from _wrapped(note, width)
    for text in filter(
        None, (words.together(outcome), words.idle(outcome), words.gpu(outcome))
    ):
        yield ""
        yield from _wrapped(text, width)
    yield ""
    yield from _wrapped(words.verdict(outcome), width)


# Of one rule more minor findings than this, and one, are only counted.
_MOST_MINOR = 3


def findings(
    outcome: RecordingReport, width: int, *, color: bool, verbose: bool = False
) -> Iterator[str]:
    """Yield a block for each finding; unless verbose, minor ones have a line each."""
    minor = []
    for finding in cpu.certain(outcome):
        if finding.minor:
            minor.append(finding)
            continue
        yield ""
        yield from block(finding, outcome, width, color=color)
    yield from _would_matter(outcome, width, color=color)
    if minor:
        yield ""
        yield "Minor:"
        if verbose:
            for finding in minor:
                yield ""
                yield from block(finding, outcome, width, color=color)
            return
        for finding in minor:
            same = [item for item in minor if item.code == finding.code]
            number = same.index(finding)
            if number > _MOST_MINOR - 1 and len(same) > _MOST_MINOR + 1:
                if number == _MOST_MINOR:
                    more = _more_minor(same[number:], outcome)
                    yield from _wrapped(more, width, indent=2)
                continue
            parts = [f"{finding.code} {printable(finding.message)}"]
            parts += [words.cost(finding, outcome), where(finding.place)]
            yield from _wrapped("; ".join(filter(None, parts)), width, indent=2)


def _would_matter(
    outcome: RecordingReport, width: int, *, color: bool
) -> Iterator[str]:
    """Yield a block for each finding that would matter on a GPU."""
    findings = cpu.would_matter(outcome)
    if findings:
        yield ""
        yield cpu.HEADING
    for finding in findings:
        yield ""
        yield from block(finding, outcome, width, color=color)


def _more_minor(left: list[Finding], outcome: RecordingReport) -> str:
    """Write how many minor findings of one rule are left, the largest first."""
    cost = words.cost(left[0], outcome)
    largest = f", the largest {cost}" if cost else ""
    return f"{left[0].code} {len(left)} more at other places{largest}"


def block(
    finding: Finding, outcome: RecordingReport, width: int, *, color: bool
) -> Iterator[str]:
    """Yield the lines of a finding: cost, sentence, place, evidence and fix."""
    head = f"{finding.code} {finding.name}"
    if finding.severity is Severity.error:
        head += " (error)"
    elif finding.doubt:
        head += f" ({finding.doubt})"
    cost = words.cost(finding, outcome)
    shown = styled(head, f"bold {SEVERITY_COLORS[finding.severity]}", color=color)
    if cost and len(head) + len(cost) + 2 <= width:
        yield f"{shown}  {cost}"
    else:
        yield shown
        yield from _wrapped(cost, width, indent=2)
    yield from _wrapped(printable(finding.message), width, indent=2)
    lines = [_labelled(where(finding.place))]
    lines += [
        (printable(entry.label), words.evidence(entry)) for entry in finding.evidence
    ]
    lines += [("fix", printable(finding.advice))]
    filled = [(label, text) for label, text in lines if text]
    widest = min(_LABEL, max((len(label) for label, _ in filled), default=0))
    for number, (label, text) in enumerate(filled):
        yield from wrapped(
            text,
            max(width, 2 * _LABEL),
            first=f"  {label:<{widest}}  ",
            rest=" " * (widest + 4),
        )
        if number == 0 and finding.frame:
            lines_of_code = words.code_lines(finding.frame)
            yield from _code(lines_of_code, width, indent=widest + 4)
    # Once is enough: at the first finding that has it.
    alike = (item for item in outcome.findings if item.example == finding.example)
    if finding.example and next(alike) is finding:
        indent = max(widest, len(_EXAMPLE)) + 4
        example = [printable(line) for line in finding.example.splitlines()]
        for number, line in enumerate(_code(example, width, indent)):
            yield line if number else f"  {_EXAMPLE}" + line[2 + len(_EXAMPLE) :]


def _labelled(place: str) -> tuple[str, str]:
    """Return a place with what stands before it: at a line, or in a function."""
    return ("in", place[3:]) if place.startswith("in ") else ("at", place)


def _code(lines: list[str], width: int, indent: int) -> Iterator[str]:
    """Yield lines of source; one that is too long is cut."""
    room = max(width - indent, 2 * _LABEL)
    for line in lines:
        yield " " * indent + (line if len(line) <= room else line[: room - 1] + "…")


def _wrapped(text: str, width: int, indent: int = 0) -> list[str]:
    rest = " " * (indent + 2 * bool(indent))
    return wrapped(text, max(width, 20), first=" " * indent, rest=rest)
