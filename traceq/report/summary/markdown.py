"""Summaries as Markdown, for a pull request or a note."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.report.base.markdown import section, table
from traceq.report.summary.content import content
from traceq.report.summary.overview import overview

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.summary import Summary


def render(summaries: Sequence[Summary]) -> str:
    """Return a section for one trace, a table with a row each for several."""
    if len(summaries) != 1:
        return table(overview(summaries))
    return section(content(summaries[0]))
