"""A comparison, one line a fact, for grep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.common.safe_text import printable
from traceq.report.diff import content as words
from traceq.report.diff import memory as memory_diff_content

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.differ.compare import Diff
    from traceq.differ.limits import Broken


def render(diff: Diff, broken: Sequence[Broken] = ()) -> str:
    """Return the limits that are broken, the verdict, the causes and the findings."""
    lines = [*words.failures(broken), words.headline(diff)]
    lines += [f"{title}: {bound}" for title, _, bound in words.sides(diff)]
    for reason in words.reasons(diff):
        parts = [reason.text, reason.where, *reason.details]
        lines.append(f"cause: {reason.change} {'; '.join(filter(None, parts))}")
    lines += [
        f"{change.state}: {words.finding_line(change)}"
        for change in diff.findings.changes
    ]
    if diff.memory is not None:
        lines.append(memory_diff_content.headline(diff.memory))
    lines += [f"caveat: {caveat}" for caveat in words.caveats(diff)]
    names = f"{printable(diff.before.name)} -> {printable(diff.after.name)}"
    lines.append(f"{names}: findings: {words.findings_verdict(diff.findings)}")
    return "\n".join(lines) + "\n"
