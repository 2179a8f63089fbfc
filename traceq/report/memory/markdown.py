"""Memory snapshots as Markdown, for a pull request or a note."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.report.base.markdown import section, table
from traceq.report.memory.content import content, overview

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.memory.summary import MemorySummary


def render(summaries: Sequence[MemorySummary]) -> str:
    """Return a section for one device, a table with a row each for several."""
    if len(summaries) != 1:
        return table(overview(summaries))
    return section(content(summaries[0]))
