"""A check as Markdown, for a comment on a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.report.base.markdown import escaped
from traceq.report.check import content as words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.check.check import FixtureResult


def render(results: Sequence[FixtureResult]) -> str:
    """Return the differences as a table, and one sentence on the whole."""
    lines = [f"### traceq check: {words.total(results)}"]
    if done := words.work(results):
        lines += ["", escaped(f"{done[:1].upper()}{done[1:]}.")]
    rows = [
        (words.name(result), words.kind(difference), words.line(difference))
        for result in results
        for difference in result.differences
    ]
    if rows:
        lines += ["", "| fixture | | difference |", "| --- | --- | --- |"]
        lines += [f"| {' | '.join(map(escaped, row))} |" for row in rows]
    return "\n".join(lines) + "\n"
