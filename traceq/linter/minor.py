"""Minor findings: those that save little, and for no other reason."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from traceq.model.finding import COVERED, LED, Evidence, Severity

if TYPE_CHECKING:
    from traceq.model.finding import Doubt, Finding

# A finding that costs less than this share of the step is minor. Heuristic threshold.
WORTH_FIXING = 0.01
LITTLE_TIME = "saves less than 1% of the step"
LITTLE_MEMORY = "holds less than 1% of the reserved memory"
# Memory that a rule thinks less of, as the GPU has room, is minor below either.
LEAST_BYTES, LEAST_OF_MEMORY = 500 << 20, 0.05
LITTLE_OF_ROOM = "holds less than 500 MiB or 5% of the reserved memory"
NO_TIME = "a fix saves nothing"
NO_COST = "costs no time or memory of its own"


def weighed(
    finding: Finding,
    *,
    step_ns: float = 0,
    reserved: int = 0,
    priced: bool = False,
    idles: bool = False,
) -> Finding:
    """Return a finding that is minor if it saves little, with the reason.

    One that its rule thinks less of is not minor if it saves as much as the others: it
    says why it fails no run. ``priced`` makes others minor too, by what they save;
    ``idles`` is true for idle time that matters though no fix is known. What its rule
    knows to be minor stays so.
    """
    if finding.minor:
        return finding
    info = finding.severity is Severity.info
    least = max(1, WORTH_FIXING * reserved)
    if info:
        least = max(LEAST_BYTES, LEAST_OF_MEMORY * reserved)
    worth = (
        idles
        or finding.saves_ns >= max(1, WORTH_FIXING * step_ns)
        or finding.cost_bytes >= least
    )
    if worth:
        return replace(finding, doubt=_doubt(finding)) if info else finding
    if not info and not priced:
        return finding
    reason = LITTLE_OF_ROOM if info and finding.cost_bytes else _reason(finding)
    return replace(finding, severity=Severity.info, minor=reason)


def covered(finding: Finding, by: str, left_ns: int) -> Finding:
    """Return a finding that is minor, as the fix of another removes the same."""
    return replace(
        finding,
        severity=Severity.info,
        minor=f"{COVERED} {by} is fixed",
        saves_ns=left_ns,
        saves_low_ns=left_ns,
        saves_high_ns=left_ns,
        saves_alone_ns=finding.saves_ns,
        after=(by,),
    )


def with_rewrite(finding: Finding, by: str) -> Finding:
    """Return a finding whose edit saves what it does until a rewrite removes more."""
    beside = Evidence(LED, f"{by}: its rewrite removes this too; this is a small edit")
    return replace(finding, evidence=(*finding.evidence, beside))


def _doubt(finding: Finding) -> Doubt:
    return finding.doubt or ("optional" if finding.cost_bytes else "uncertain")


def _reason(finding: Finding) -> str:
    if finding.saves_ns:
        return LITTLE_TIME
    if finding.cost_bytes:
        return LITTLE_MEMORY
    return NO_TIME if finding.gpu_ns or finding.host_ns else NO_COST
