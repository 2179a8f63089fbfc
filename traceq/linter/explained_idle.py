"""Idle time of the GPU that the findings of a step explain.

It is asked of the replay: what a fix removes from the host is removed from the steps,
and what is left of the idle time is not explained. So nothing counts twice, whatever
fixes have in common; a sync counts by what the GPU idles because of it, which is after
it; and what only moves from one wait to the next is not explained. Adding up the
intervals that fixes cover would get the last two wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.common.progress import report_progress
from traceq.model.lint_report import ExplainedIdle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.linter.savings import Savings
    from traceq.linter.view import View
    from traceq.model.finding import Finding


def explained_idle(
    view: View, savings: Savings, findings: Sequence[Finding]
) -> ExplainedIdle | None:
    """Return the explained part of the idle time; none if the GPU bounds a step."""
    before = view.bound.waits
    if before is None:
        return None
    report_progress("idle time", 0, 1)
    named = [finding for finding in findings if not finding.residual]
    residual = [
        finding for finding in findings if finding.residual and finding.gpu_idle_ns
    ]
    left = view.after(savings.host_changes(named)).waits
    all_left = left
    if residual:
        all_left = view.after(savings.host_changes([*named, *residual])).waits
    return ExplainedIdle(
        idle_ns=before.idle_ns,
        explained_ns=max(0.0, before.idle_ns - left.idle_ns),
        with_residual_ns=max(0.0, before.idle_ns - all_left.idle_ns),
        residual=tuple(dict.fromkeys(finding.code for finding in residual)),
        unexplained=left.largest,
    )
