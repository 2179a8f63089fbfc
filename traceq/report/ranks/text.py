"""A job for the terminal: the verdict, a screen, and the heat map."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from traceq.report.base.screen import line_width, screen
from traceq.report.base.text import rendered, wrapped
from traceq.report.lint.full import findings
from traceq.report.ranks.content import content

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from traceq.model.lint_report import Report
    from traceq.ranks.analysis import Analysis


def render(
    analysis: Analysis, report: Report, *, width: int | None, color: bool
) -> str:
    """Return the text of a screen, and the findings."""
    wide = line_width(width)
    text = rendered(list(_parts(analysis, wide)), width=wide, color=color)
    blocks = [
        "\n".join(findings(outcome, wide, color=color)) for outcome in report.outcomes
    ]
    return "\n".join([text, *blocks]).rstrip("\n") + "\n"


def _parts(analysis: Analysis, width: int) -> Iterator[RenderableType]:
    words = content(analysis)
    for line in wrapped(words.verdict, width):
        yield Text(line, style="bold")
    yield ""
    yield from screen(words.screen, width)
    if words.heat:
        yield ""
        yield Text("waiting for others, over the window", style="bold")
        label = max(len(name) for name, _ in words.heat)
        for name, line in words.heat:
            yield Text(f"{name:>{label}} │{line[: width - label - 3]}│")
    if words.notes:
        yield ""
    for note in words.notes:
        for line in wrapped(note, width, first="note: ", rest="      "):
            yield Text(line)
