"""Findings on time and on memory that one edit fixes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from traceq.model.finding import Evidence, Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.model.finding import Finding, Place

# A rule on memory, and the one on time whose fix frees the same.
_ON_TIME = {"MEM006": "ATT003"}


def with_one_edit(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings, of which those on memory are minor that another one fixes.

    That one says what memory its fix frees. It is of the same function.
    """
    leading = {
        at: next(
            (
                number
                for number, other in enumerate(findings)
                if other.code == _ON_TIME.get(finding.code)
                and not other.minor
                and _same_function(finding.place, other.place)
            ),
            None,
        )
        for at, finding in enumerate(findings)
    }
    changed = list(findings)
    for at, first in leading.items():
        if first is None:
            continue
        one, lead = changed[at], changed[first]
        frees = Evidence(
            "memory", value=one.cost_bytes, unit="bytes", note=f"less held ({one.code})"
        )
        changed[first] = replace(lead, evidence=(*lead.evidence, frees))
        reason = f"the fix of {lead.code} frees it"
        changed[at] = replace(one, severity=Severity.info, minor=reason)
    return sorted(changed, key=lambda finding: bool(finding.minor))


def _same_function(place: Place, other: Place) -> bool:
    """Return whether two places are of one function; one path may be shorter."""
    if not (place.file and other.file) or place.function != other.function:
        return False
    short, long = sorted((place.file, other.file), key=len)
    return long == short or long.endswith(f"/{short}")
