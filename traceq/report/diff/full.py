"""A comparison for the terminal: the verdict, the numbers, the causes, the findings."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from traceq.report.base.columns import Column, fitted
from traceq.report.base.screen import line_width
from traceq.report.base.text import bold, styled
from traceq.report.diff import content as words
from traceq.report.diff import memory as memory_diff_content
from traceq.report.diff import modules as by_module
from traceq.report.diff.causes import signed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceq.differ.compare import Diff
    from traceq.differ.limits import Broken

_CHANGE = 10
_VERDICTS = {"slower": "red", "faster": "green"}
_STATES = {"new": "red", "worse": "red", "gone": "green", "better": "green"}


def render(
    diff: Diff, broken: Sequence[Broken] = (), *, width: int | None, color: bool
) -> str:
    """Return the whole comparison, wrapped to a width."""
    width = line_width(width)
    return "\n".join(_lines(diff, broken, width, color=color)) + "\n"


def _lines(
    diff: Diff, broken: Sequence[Broken], width: int, *, color: bool
) -> Iterator[str]:
    for failure in words.failures(broken):
        yield from (bold(line, color=color) for line in _wrapped(failure, width))
    style = f"bold {_VERDICTS.get(diff.verdict, '')}"
    yield from (
        styled(line, style, color=color)
        for line in _wrapped(words.headline(diff), width)
    )
    for title, name, bound in words.sides(diff):
        yield from _wrapped(f"{title:<8}{name}", width, indent=8)
        yield from _wrapped(bound, width, first=8, indent=8)
    yield ""
    titles = (words.compared(diff), "before", "after", "change")
    columns = [Column(title) for title in titles]
    rows = words.metric_rows(diff)
    lines, _ = fitted(columns, rows, width)
    yield bold(lines[0], color=color)
    for line, (*_, last) in zip(lines[1:], rows, strict=False):
        yield _with_change(line, last, color=color)
    reasons = words.reasons(diff)
    if reasons:
        yield ""
        yield bold("Why, biggest first:", color=color)
        for reason in reasons:
            yield from _reason(reason, width, color=color)
        total = f"{signed(diff.change_ns):>{_CHANGE}}"
        yield f"{styled(total, _direction(total), color=color)}  together"
    yield from _modules(diff, width, color=color)
    yield from _only(diff, width)
    yield ""
    yield bold("Findings: ", color=color) + words.findings_verdict(diff.findings)
    for change in diff.findings.changes:
        text = f"{change.state:<6}  {words.finding_line(change)}"
        head, *more = _wrapped(text, width, first=2, indent=10)
        state = styled(change.state, _STATES.get(change.state, ""), color=color)
        yield head.replace(change.state, state, 1)
        yield from more
    if diff.memory is not None:
        yield ""
        yield memory_diff_content.text(diff.memory, width=width, color=color).rstrip()
    caveats = words.caveats(diff)
    if caveats:
        yield ""
        yield bold("Caveats:", color=color)
        for caveat in caveats:
            yield from _wrapped(f"- {caveat}", width, indent=2)


def _modules(diff: Diff, width: int, *, color: bool) -> Iterator[str]:
    if diff.modules is None:
        return
    yield ""
    yield bold(by_module.TITLE, color=color)
    yield from by_module.text(diff.modules, width)
    for note in by_module.notes(diff.modules):
        yield from _wrapped(note, width, indent=2)


def _only(diff: Diff, width: int) -> Iterator[str]:
    for side, calls in (("before", diff.calls.before), ("after", diff.calls.after)):
        if calls:
            yield ""
            yield from _wrapped(f"Only {side}: {words.only(calls)}", width, indent=2)


def _direction(change: str) -> str:
    """Return the colour of a change: more is red, less is green."""
    return {"+": "red", "-": "green"}.get(change.strip()[:1], "")


def _with_change(line: str, change: str, *, color: bool) -> str:
    """Return a line of the table with its last column in the colour of the change."""
    if not change or not line.endswith(change):
        return line
    return line.removesuffix(change) + styled(change, _direction(change), color=color)


def _reason(reason: words.Reason, width: int, *, color: bool) -> Iterator[str]:
    left = _CHANGE + 2
    change = f"{reason.change:>{_CHANGE}}"
    head, *more = _wrapped(f"{change}  {reason.text}", width, indent=left)
    yield head.replace(change, styled(change, _direction(change), color=color), 1)
    yield from more
    for line in filter(None, (reason.where, *reason.details)):
        yield from _wrapped(line, width, first=left, indent=left + 2)


def _wrapped(text: str, width: int, *, first: int = 0, indent: int = 0) -> list[str]:
    # Wrapping drops blanks that a line begins with, so they are put back.
    start = text[: len(text) - len(text.lstrip(" "))]
    return textwrap.wrap(
        text.lstrip(" "),
        max(width, 40),
        initial_indent=" " * first + start,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
