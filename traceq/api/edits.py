"""Source edits of findings: what ``traceq fix`` proposes, and JSON shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from traceq.common.git_repository import read_repository
from traceq.errors import TraceqError
from traceq.fix.propose import UNKNOWN_PROGRAM, RecordedProgram, has_libcst, propose
from traceq.formats.run import is_run, read_run

if TYPE_CHECKING:
    from traceq.fix.edit import Proposal
    from traceq.model.lint_report import Report


def proposed(report: Report, root: Path | None) -> list[list[Proposal]]:
    """Return the edit of each finding, or why there is none, by recording.

    Without LibCST, or without a folder that the source could be in, there is none.
    """
    if root is None or not has_libcst():
        return [[] for _ in report.outcomes]
    repository = read_repository(root)
    return [
        propose(outcome.findings, repository, _program_of(outcome.name), outcome.entry)
        for outcome in report.outcomes
    ]


def _program_of(name: str) -> RecordedProgram:
    """Return what a recording knows of its program: a run folder has its source."""
    folder = Path(name)
    try:
        if not is_run(folder):
            return UNKNOWN_PROGRAM
        ranks = read_run(folder).ranks
    except (TraceqError, OSError, ValueError):
        return UNKNOWN_PROGRAM
    copies = {file: text for rank in ranks for file, text in rank.sources.items()}
    return RecordedProgram(
        copies, next((rank.torch for rank in ranks if rank.torch), "")
    )
