"""History in Markdown, for a pull request or a note."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.report.base.markdown import escaped, table
from traceq.report.history import content as words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from traceq.history.series import Compared, Explained, Series


def show(series: Sequence[Series]) -> str:
    """Return a table of runs for each series, and its jumps."""
    parts = []
    for column in series:
        parts += [
            f"### {escaped(words.series_title(column))}",
            "",
            table(words.table(column)),
        ]
        for jump, reasons in words.jump_lines(column):
            parts += [f"- {escaped(jump)}", *_bullets(reasons, "  ")]
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def explain(explained: Explained) -> str:
    """Return what differs between two runs."""
    before, after = words.sides(explained)
    parts = [
        f"### {escaped(before)} → {escaped(after)}",
        "",
        table(words.number_table(explained.difference)),
        *_bullets(words.reasons(explained.difference)),
    ]
    return "\n".join(parts) + "\n"


def compare(compared: Compared) -> str:
    """Return the comment on a new run."""
    run = compared.run
    headline = words.headline(compared)
    parts = [f"### traceq history: {escaped(run.series or run.name)}", ""]
    parts.append(escaped(f"{headline[:1].upper()}{headline[1:]}."))
    if compared.difference:
        if compared.shifts:
            causes = words.reasons(compared.difference, compared.shifts)
            parts += ["", *_bullets(causes)]
        parts += ["", table(words.compared_table(compared)).rstrip()]
        last = compared.earlier[-1]
        parts += ["", escaped(f"Last run of the history: {words.run_name(last)}.")]
    return "\n".join(parts) + "\n"


def _bullets(lines: Iterable[str], indent: str = "") -> list[str]:
    return [f"{indent}- {escaped(line)}" for line in lines]
