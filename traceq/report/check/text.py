"""A check for the terminal: a line for each fixture, and one for each difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.report.base.screen import line_width
from traceq.report.base.text import bold, wrapped
from traceq.report.check import content as words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.check.check import FixtureResult

_LABEL = 9


def render(results: Sequence[FixtureResult], *, width: int | None, color: bool) -> str:
    """Return the whole check, wrapped to a width."""
    width = max(line_width(width), 2 * _LABEL + 4)
    lines = []
    for result in results:
        wrong = any(difference.kind != "skipped" for difference in result.differences)
        head = f"{words.name(result)}: {words.verdict(result)}"
        lines.append(bold(head, color=color and wrong))
        for item in result.differences:
            lines += wrapped(
                words.line(item),
                width,
                first=f"  {words.kind(item):<{_LABEL}} ",
                rest=" " * (_LABEL + 3),
            )
    done = wrapped(words.work(results), width, rest="  ")
    return "\n".join([*lines, *done, words.total(results)]) + "\n"
