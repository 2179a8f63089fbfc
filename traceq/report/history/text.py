"""History for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.common.safe_text import printable
from traceq.report.base.columns import fitted
from traceq.report.history import content as words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from traceq.history.bisection import Bisection
    from traceq.history.series import Compared, Explained, Series


def show(series: Sequence[Series], *, width: int | None) -> str:
    """Return one line a run, and the jumps with their causes below."""
    lines = []
    for column in series:
        table = words.table(column)
        rows, _ = fitted(table.columns, table.rows, width)
        lines += [words.series_title(column), *rows]
        if column.jumps:
            lines.append("")
        for jump, reasons in words.jump_lines(column):
            lines += [jump, *_indented(reasons)]
        lines.append("")
    return _text(lines[:-1] or ["the history has no runs"])


def explain(explained: Explained, *, width: int | None) -> str:
    """Return what differs between two runs."""
    before, after = words.sides(explained)
    table = words.number_table(explained.difference)
    rows, _ = fitted(table.columns, table.rows, width)
    causes = _indented(words.reasons(explained.difference))
    return _text([f"before: {before}", f"after:  {after}", "", *rows, "", *causes])


def compare(compared: Compared, *, width: int | None) -> str:
    """Return what a new run changes."""
    lines = [words.headline(compared)]
    if compared.difference:
        table = words.compared_table(compared)
        rows, _ = fitted(table.columns, table.rows, width)
        lines += ["", *rows]
        if compared.shifts:
            causes = words.reasons(compared.difference, compared.shifts)
            lines += ["", *_indented(causes)]
    return _text(lines)


def bisect(bisection: Bisection) -> str:
    """Return the commit to measure next."""
    return _text(map(printable, words.bisection_lines(bisection)))


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _text(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"
