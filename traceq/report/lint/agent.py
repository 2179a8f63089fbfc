"""Findings for coding agents: few tokens, most valuable first, each with its edit."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from traceq.common.safe_text import as_unicode, printable, visible
from traceq.common.words import counted
from traceq.report.base.tokens import cut, most_tokens
from traceq.report.bound import sentence
from traceq.report.lint import content as words
from traceq.report.lint.next_steps import by_finding, example_parts, verify

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from traceq.fix.edit import Proposal
    from traceq.model.finding import Finding
    from traceq.model.lint_report import RecordingReport, Report
    from traceq.report.lint.next_steps import Proposals

VERSION = 1
"""Raised when a field is renamed or removed."""
MOST_TOKENS = 300
"""Tokens of one finding."""
TOP = 5
"""Findings of a recording that are shown."""
_MOST_LINES = 12
"""Lines of an edit."""
_MOST_EVIDENCE = 3
_MOST_REASONS = 6
_ADVICE = 120
_WIDEST = 60


def render(report: Report, proposals: Proposals = (), *, top: int = TOP) -> str:
    """Return the findings that matter of each recording, and what to do next."""
    edits = by_finding(report, proposals)
    parts = [
        "\n".join(_recording(outcome, of, top))
        for outcome, of in zip(report.outcomes, edits, strict=True)
    ]
    return "\n\n".join(parts or ["no recordings"]) + "\n"


def _recording(
    outcome: RecordingReport, edits: Mapping[str, Proposal], top: int
) -> Iterator[str]:
    shown = [item for item in outcome.findings if not item.minor]
    minor = len(outcome.findings) - len(shown)
    left = max(0, len(shown) - top)
    yield f"traceq {VERSION}: {words.title(outcome)}"
    if outcome.bound:
        yield f"step: {printable(sentence(outcome.bound))}"
    yield f"findings: {len(shown)}" + "".join(
        f", {count} {what}"
        for count, what in ((left, "not shown (--top)"), (minor, "minor"))
        if count
    )
    for number, finding in enumerate(shown[:top], 1):
        yield ""
        yield finding_text(number, finding, outcome, edits.get(finding.fingerprint))
    yield ""
    yield from _unchecked(outcome)
    yield f"next: {_next(outcome, shown[:top], edits)}"


def finding_text(
    number: int, finding: Finding, outcome: RecordingReport, proposal: Proposal | None
) -> str:
    """Return one finding in at most ``MOST_TOKENS``: first, evidence is left out."""
    head = list(_head(number, finding, outcome))
    fix = [f"fix: {cut(printable(finding.advice), _ADVICE)}"] if finding.advice else []
    edit = _edit(finding, proposal)
    end = [f"verify: {printable(verify(finding, outcome))}"]
    evidence = [
        f"evidence: {entry.label} {_narrow(words.evidence(entry))}".rstrip()
        for entry in finding.evidence[:_MOST_EVIDENCE]
    ]
    while evidence and _too_long(head, evidence, fix, edit, end):
        evidence.pop()
    if _too_long(head, fix, edit, end):
        edit = [
            f"edit: too long here; traceq fix --only {finding.code} --diff shows it"
        ]
        edit = edit if proposal else []
    return "\n".join((*head, *evidence, *fix, *edit, *end))


def _narrow(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…"


def _too_long(*parts: list[str]) -> bool:
    return most_tokens("\n".join(line for part in parts for line in part)) > MOST_TOKENS


def _head(number: int, finding: Finding, outcome: RecordingReport) -> Iterator[str]:
    place = finding.place
    yield f"[{number}] {finding.code} {finding.name} id={finding.fingerprint}"
    at = printable(place.source or place.module or "")
    if place.source and place.line:
        at += f":{place.line}"
        at += f" {printable(place.function)}" if place.function else ""
    if at:
        yield f"at: {at[-2 * _WIDEST :]}"
    yield f"problem: {cut(printable(finding.message), _ADVICE)}"
    cost = words.cost(finding, outcome)
    if cost:
        yield f"cost: {cost}"
    if finding.doubt:
        yield f"doubt: {finding.doubt}"


def _edit(finding: Finding, proposal: Proposal | None) -> list[str]:
    """Return the edit as a small diff: certain, else the example of the rule's page."""
    if proposal is not None:
        lines = []
        for hunk in proposal.hunks:
            lines.append(f"edit: certain {printable(hunk.file)}:{hunk.line}")
            lines += _diff(hunk.before, hunk.after)
        return lines
    if not finding.example:
        return []
    lines = _diff(*example_parts(finding.example))
    return ["edit: example, not this program's code", *lines[:_MOST_LINES]]


def _diff(before: str, after: str) -> list[str]:
    """Return changed lines; those at both ends that stay are written once."""
    old, new = before.splitlines(), after.splitlines()
    same = next(
        (n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
        min(len(old), len(new)),
    )
    lines = [f"  {line}" for line in old[:same]]
    lines += [f"- {line}" for line in old[same:]]
    lines += [f"+ {line}" for line in new[same:]]
    return [visible(line) for line in lines]


def _unchecked(outcome: RecordingReport) -> Iterator[str]:
    """Yield what could not be checked, and why."""
    for rule in outcome.crashed:
        yield f"not checked: {rule.code}: it crashed"
    reasons = words.skipped(outcome)
    for codes, reason in reasons[:_MOST_REASONS]:
        yield f"not checked: {codes}: {cut(reason, _WIDEST)}"
    rest = len(reasons) - _MOST_REASONS
    if rest > 0:
        yield f"not checked: {counted(rest, 'more reason')}; --format json has them"
    for note in words.notes(outcome):
        yield f"note: {cut(note, _ADVICE)}"


def _next(
    outcome: RecordingReport, shown: list[Finding], edits: Mapping[str, Proposal]
) -> str:
    """Return the command to run next: the certain edits, else the worst's proof.

    An edit that saves time only after others is not next.
    """
    certain = [
        finding.code
        for finding in shown
        if finding.fingerprint in edits and finding.doubt != "later"
    ]
    if certain:
        codes = ",".join(dict.fromkeys(certain))
        name = printable(quote(as_unicode(outcome.name)))
        return f"traceq fix {name} --only {codes} --diff"
    if shown:
        return f"fix [1], then {printable(verify(shown[0], outcome))}"
    return "nothing to fix"
