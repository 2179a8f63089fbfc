"""Findings inside libraries: the library's function next to the user's line."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
from msgspec import structs

from traceq.common.expressions import text
from traceq.common.words import MODULE_LEVEL
from traceq.model.finding import Place

if TYPE_CHECKING:
    from traceq.linter.run import Ran
    from traceq.model.finding import Finding
    from traceq.model.trace import Trace

# A function is named if it has this share of what a finding was seen by, or more.
_MOST = 0.5


def with_libraries(ran: Ran, trace: Trace | None) -> Ran:
    """Name the library's function where a rule placed a finding by the user's line."""
    if trace is None or not any(
        table["via"].null_count() < table.height
        for table in (trace.ops, trace.kernels, trace.runtime)
    ):
        return ran
    return structs.replace(
        ran, findings=tuple(_placed(finding, trace) for finding in ran.findings)
    )


def entry_of(trace: Trace) -> Place | None:
    """Return the outermost function of the user's: that of the program, if it is seen.

    The program's own file begins at its first line.
    """
    frames = trace.frames
    own = frames["dur"].filter(frames["own"])
    if not len(own):
        return None
    longest = frames[["file", "line", "function", "ts"]].filter(
        frames["own"] & (frames["dur"] == own.max())
    )
    for row in longest.sort("ts").head(1).iter_rows(named=True):
        line = 1 if row["function"] == MODULE_LEVEL else row["line"]
        return Place(row["file"], line or 1, row["function"])
    return None


def _placed(finding: Finding, trace: Trace) -> Finding:
    if not finding.place.file or finding.place.via:
        return finding
    seen = pl.concat(
        table["via"].gather(sorted(ids)).cast(pl.String)
        for table, ids in (
            (trace.ops, finding.ops),
            (trace.kernels, finding.kernels),
            (trace.runtime, finding.calls),
        )
    )
    if seen.null_count() == len(seen):
        return finding
    most = (
        seen.to_frame()
        .group_by(text("via"))
        .len()
        .sort("len", "via", descending=[True, False])
        .filter(pl.col("len") >= _MOST * len(seen))
    )
    via = most["via"].item(0) if most.height else None
    return replace(finding, place=replace(finding.place, via=via)) if via else finding
