"""Memory snapshots for the terminal: a screen for one device, a row each for several.

The timeline is stacked by category, each a letter, so that it can be read without
colours and in a pipe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from traceq.analysis.memory.timeline import highest_moments, timeline
from traceq.common import units
from traceq.report.base.columns import fitted
from traceq.report.base.screen import PIPE, WIDEST, screen, table_lines
from traceq.report.base.text import TIE, rendered
from traceq.report.memory.content import content, overview

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from traceq.analysis.memory.summary import MemorySummary
    from traceq.report.base.content import TextTable

_HEIGHT = 16
_LABELLED = 4
_AXIS = 10
# From the bottom of the stack: what stays comes first.
STACK = {
    "weights": ("w", "blue"),
    "optimizer state": ("o", "cyan"),
    "CUDA-graph pools": ("p", "white"),
    "communication buffers": ("c", "bright_blue"),
    "gradients": ("g", "magenta"),
    "activations": ("a", "green"),
    "attention scores": ("s", "red"),
    "logits and loss": ("l", "yellow"),
    "temporaries": ("t", "bright_black"),
    "unknown": ("?", "bright_white"),
}


def render(
    summaries: Sequence[MemorySummary], *, width: int | None, color: bool
) -> str:
    """Return a screen of this width; without one, a row of several stays one line."""
    if len(summaries) == 1:
        width = min(width or PIPE, WIDEST)
        return rendered(list(_screen(summaries[0], width)), width=width, color=color)
    return render_table(overview(summaries), width=width, color=color)


def render_table(table: TextTable, *, width: int | None, color: bool) -> str:
    """Return one table as text."""
    if width is None:
        lines, _ = fitted(table.columns, table.rows, None)
        return "\n".join(lines) + "\n"
    return rendered(list(table_lines(table, width)), width=width, color=color)


def _screen(summary: MemorySummary, width: int) -> Iterator[RenderableType]:
    yield from screen(content(summary), width)
    yield from _timeline(summary, width)


def _timeline(summary: MemorySummary, width: int) -> Iterator[RenderableType]:
    """Draw what was live over time, the highest moment of each column."""
    if summary.curve.height < 2 or not summary.peak["allocated"]:  # noqa: PLR2004
        return
    columns = max(8, width - _AXIS)
    moments = highest_moments(summary.curve, columns)
    curves = timeline(summary.curves, moments["event"])
    sizes = {
        (event, category): size
        for event, category, size in curves.select(
            "event", "category", "size"
        ).iter_rows()
    }
    top = summary.peak["allocated"]
    stacks = [_stacked(event, sizes, top) for event in moments["event"]]
    yield ""
    yield Text("allocated over time", style="bold")
    for row in reversed(range(_HEIGHT)):
        labelled = (row + 1) % _LABELLED == 0
        label = units.size(top * (row + 1) / _HEIGHT) if labelled else ""
        line = Text(f"{label:>{_AXIS - 1}} ")
        for stack in stacks:
            name = stack[row]
            letter, style = STACK[name] if name else (" ", "")
            line.append(letter, style=style)
        yield line
    yield Text(" " * _AXIS + _axis(summary, columns))
    yield _legend({name for stack in stacks for name in stack if name})


def _legend(categories: set[str]) -> Table:
    words = Text()
    for name in (name for name in STACK if name in categories):
        letter, style = STACK[name]
        words.append(letter, style=style)
        words.append(TIE + name.replace(" ", TIE) + "  ")
    legend = Table.grid()
    legend.add_column(width=_AXIS)
    legend.add_column(overflow="fold")
    legend.add_row("", words)
    return legend


def _stacked(
    event: int | None, sizes: dict[tuple[int | None, str], int], top: int
) -> list[str]:
    """Return the category at each height, empty above them all.

    The middle of a row counts, so that a category is drawn as high as it is.
    """
    rows = [""] * _HEIGHT
    reached, done = 0, 0
    for name in STACK:
        reached += sizes.get((event, name), 0)
        until = min(_HEIGHT, round(reached * _HEIGHT / top))
        for row in range(done, until):
            rows[row] = name
        done = max(done, until)
    return rows


def _axis(summary: MemorySummary, columns: int) -> str:
    last = summary.curve["ts"].max()
    begin, end = "0", f"{summary.curve.height - 1:,} events"
    if isinstance(last, int) and last:
        end = units.time(last)
    return begin + end.rjust(columns - len(begin))
