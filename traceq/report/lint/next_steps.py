"""Next steps of a finding: its edit, the remedy to try, and the proof."""

from __future__ import annotations

import re
from pathlib import Path
from shlex import join, quote
from typing import TYPE_CHECKING, Any, TypeAlias

from traceq.common.safe_text import as_unicode
from traceq.common.words import MODULE_LEVEL
from traceq.fix.remedies import remedy_of
from traceq.formats.run import command_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.fix.edit import Proposal
    from traceq.model.finding import Finding
    from traceq.model.lint_report import RecordingReport, Report

Proposals: TypeAlias = "Sequence[Sequence[Proposal]]"
"""The edit of each finding, by recording; empty where none was asked for."""
NEW_RUN = "NEW_RUN"
"""Placeholder of the run that is recorded after the edit."""
PROGRAM = "PROGRAM"
"""Placeholder of the command that runs the program, where the recording has none."""
_RUNS = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed")
_FIXTURE = "origin.toml"


def by_finding(report: Report, proposals: Proposals) -> list[dict[str, Proposal]]:
    """Return the certain edits of each recording, by the finding's fingerprint."""
    known = [
        {proposal.fingerprint: proposal for proposal in of if proposal.hunks}
        for of in proposals
    ]
    return known or [{} for _ in report.outcomes]


def edit_data(finding: Finding, proposal: Proposal | None) -> dict[str, Any] | None:
    """Return the edit of a finding: certain, else the example of its rule's page."""
    if proposal is not None:
        first, *others = (
            {
                "file": hunk.file,
                "line": hunk.line,
                "before": hunk.before,
                "after": hunk.after,
            }
            for hunk in proposal.hunks
        )
        return {"kind": "certain", **first} | ({"also": others} if others else {})
    if not finding.example:
        return None
    before, after = example_parts(finding.example)
    place = finding.place
    return {
        "kind": "example",
        "file": place.source,
        "line": place.line,
        "before": before,
        "after": after,
    }


def example_parts(example: str) -> tuple[str, str]:
    r"""Return the code before and after of an example, which is written as a diff.

    >>> example_parts("- x = y.clone()\n+ x = y\n  use(x)")
    ('x = y.clone()\nuse(x)', 'x = y\nuse(x)')
    """
    lines = example.splitlines()
    before = [line[2:] for line in lines if line[:1] != "+"]
    after = [line[2:] for line in lines if line[:1] != "-"]
    return "\n".join(before), "\n".join(after)


def verify(finding: Finding, outcome: RecordingReport) -> str:
    """Return the command that shows whether a finding is fixed.

    A remedy is tried, the program of a fixture is run and compared, and of any other
    recording a new one is compared with it. ``NEW_RUN`` and ``PROGRAM`` are to be
    filled in.
    """
    name = as_unicode(outcome.name)
    if (Path(outcome.name) / _FIXTURE).is_file():
        return f"traceq check {quote(name)} --run"
    if remedy_of(finding):
        return f"traceq try --only {finding.code} -- {_program(outcome)}"
    return f"traceq diff {quote(name)} {NEW_RUN}"


def _program(outcome: RecordingReport) -> str:
    """Return the command that runs the program: as it was recorded, else its file.

    A recording may be a stranger's: of its command, only a script or a launcher with
    its arguments is repeated.
    """
    words = command_of(Path(outcome.name))
    if len(words) > 1 and _RUNS.fullmatch(Path(words[0]).name) and "-c" not in words:
        return join(as_unicode(word) for word in words)
    entry = outcome.entry
    if entry and entry.source and entry.function == MODULE_LEVEL:
        return f"python {quote(entry.source)}"
    return PROGRAM


def next_data(
    finding: Finding, outcome: RecordingReport, proposal: Proposal | None
) -> dict[str, Any]:
    """Return edit, verify and remedy of a finding as plain data."""
    return {
        "edit": edit_data(finding, proposal),
        "verify": verify(finding, outcome),
        "remedy": remedy_of(finding),
    }
