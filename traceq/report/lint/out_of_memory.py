"""Words on a program that ran out of memory: a report begins with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.common.safe_text import printable
from traceq.model.finding import Evidence, Severity

if TYPE_CHECKING:
    from traceq.model.finding import Finding
    from traceq.model.lint_report import RecordingReport

_RULE = "MEM010"


# What the first screen repeats of the finding: what held the memory, what would fit.
_LABELS = ("live", "held by", "fits with", "too little")


def ended_by(outcome: RecordingReport) -> Finding | None:
    """Return the failed allocation that ended the program; none if it did not.

    A failure after which the program went on is only a warning.
    """
    ended = (
        finding
        for finding in outcome.findings
        if is_failure(finding) and finding.severity is Severity.error
    )
    return next(ended, None)


def is_failure(finding: Finding) -> bool:
    """Return whether a finding is a failed allocation: its bytes are the request."""
    return finding.code == _RULE


def ran_out(outcome: RecordingReport) -> str:
    """Return where the program ran out of memory; empty if it did not."""
    finding = ended_by(outcome)
    if finding is None:
        return ""
    place = finding.place
    at = f" at {place.file}:{place.line}" if place.file else ""
    return printable(f"out of memory{at}")


def answer(outcome: RecordingReport) -> list[Evidence]:
    """Return what was live, the line that held most, and the change to try first."""
    finding = ended_by(outcome)
    if finding is None:
        return []
    first: dict[str, Evidence] = {}
    for entry in finding.evidence:
        if entry.label in _LABELS:
            first.setdefault(entry.label, entry)
    if "fits with" in first:
        first.pop("too little", None)
    asked = Evidence("asked", printable(finding.message.removeprefix("OOM on ")))
    return [asked, *first.values()]
