"""A comparison as GitHub's workflow commands, which become annotations on a change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.common.safe_text import printable
from traceq.report.diff import content as words
from traceq.report.lint.github import command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.differ.compare import Diff
    from traceq.differ.findings import FindingChange
    from traceq.differ.limits import Broken

_KINDS = {"new": "warning", "worse": "warning", "better": "notice", "gone": "notice"}


def render(diff: Diff, broken: Sequence[Broken] = ()) -> str:
    """Return a command for each broken limit, the verdict and each finding."""
    lines = [
        command("error", {"title": "traceq diff"}, text)
        for text in words.failures(broken)
    ]
    lines.append(command("notice", {"title": "traceq diff"}, words.headline(diff)))
    lines += map(annotation, diff.findings.changes)
    names = f"{printable(diff.before.name)} -> {printable(diff.after.name)}"
    # A file may be called as a command is, which acts only where a line begins.
    lines.append(f"traceq: {names}: findings: {words.findings_verdict(diff.findings)}")
    return "\n".join(lines) + "\n"


def annotation(change: FindingChange) -> str:
    """Return the change of a finding, at its line."""
    finding = change.finding
    at: dict[str, object] = {}
    if finding.place.file:
        at = {"file": finding.place.source, "line": (finding.place.lines or (1,))[0]}
    title = f"{finding.code} {finding.name}, {change.state}"
    text = words.finding_line(change)
    return command(_KINDS[change.state], {**at, "title": title}, text)
