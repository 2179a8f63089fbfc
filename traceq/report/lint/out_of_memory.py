"""Words on a program that ran out of memory: a report begins with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.common.safe_text import printable
from traceq.model.finding import Severity

if TYPE_CHECKING:
    from traceq.model.lint_report import RecordingReport

_RULE = "MEM010"


def ran_out(outcome: RecordingReport) -> str:
    """Return where the program ran out of memory; empty if it did not.

    A failure after which the program went on is only a warning.
    """
    ended = [
        finding.place
        for finding in outcome.findings
        if finding.code == _RULE and finding.severity is Severity.error
    ]
    if not ended:
        return ""
    place = ended[0]
    at = f" at {place.file}:{place.line}" if place.file else ""
    return printable(f"out of memory{at}")
