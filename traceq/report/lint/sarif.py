"""Findings as SARIF 2.1.0, for code scanning: results at the user's file and line."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path, PurePath
from string import digits
from typing import TYPE_CHECKING, Any

import orjson

from traceq import __version__
from traceq.common.safe_text import as_unicode, plain_json
from traceq.linter.pack import is_own
from traceq.model.finding import Place, Severity
from traceq.report.base.site import SITE, rule_address
from traceq.report.lint import content as words
from traceq.report.lint.next_steps import by_finding

if TYPE_CHECKING:
    from traceq.fix.edit import Hunk, Proposal
    from traceq.linter.pack import Rules
    from traceq.linter.rule import Rule
    from traceq.model.finding import Finding
    from traceq.model.lint_report import RecordingReport, Report
    from traceq.report.lint.next_steps import Proposals

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
# SARIF makes a link of [text](target).
_LINK = re.compile(r"\[(?=[^\]]*\]\()")
_ROOT = "%SRCROOT%"
# GitHub shows no more of a description.
_LONGEST = 1000
_PROBLEM = {
    Severity.info: "recommendation",
    Severity.warning: "warning",
    Severity.error: "error",
}
_LEVEL = {Severity.info: "note", Severity.warning: "warning", Severity.error: "error"}


def render(
    report: Report,
    rules: Rules,
    root: Path | None = None,
    proposals: Proposals = (),
) -> str:
    """Return one SARIF log with one run; paths are those from the root, if any.

    It describes the rules with findings, and has the certain edits as fixes.
    """
    seen = {finding.code for each in report.outcomes for finding in each.findings}
    codes = [code for code in rules if code in seen]
    edits = by_finding(report, proposals)
    run = {
        "tool": {
            "driver": {
                "name": "traceq",
                "version": __version__,
                "semanticVersion": __version__,
                "informationUri": SITE,
                "rules": [_rule(code, rules) for code in codes],
            }
        },
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {
            _ROOT: {"description": {"text": "The root of the repository."}}
        },
        "invocations": [
            {
                "executionSuccessful": not report.crashed,
                "toolExecutionNotifications": [
                    {
                        "level": "error",
                        "message": {"text": f"{rule.code} crashed: {rule.error}"},
                    }
                    for outcome in report.outcomes
                    for rule in outcome.crashed
                ],
            }
        ],
        "results": [
            _result(finding, outcome, codes, root)
            | _fixes(finding, of.get(finding.fingerprint))
            for outcome, of in zip(report.outcomes, edits, strict=True)
            for finding in outcome.findings
        ],
    }
    document = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return (
        plain_json(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()) + "\n"
    )


def _rule(code: str, rules: Rules) -> dict[str, Any]:
    rule = rules[code]
    page = rule.page() or rule.name()
    summary = (rule.summary() or rule.name())[:_LONGEST]
    return {
        "id": code,
        "name": rule.__name__,
        "shortDescription": {"text": summary},
        "fullDescription": {"text": _described(page)[:_LONGEST]},
        **({"helpUri": rule_address(code)} if is_own(rule) else {}),
        "help": {"text": page, "markdown": f"# {code} {rule.name()}\n\n{page}"},
        "defaultConfiguration": {"level": _LEVEL[rule.severity]},
        "properties": {
            "tags": _tags(rule),
            "precision": "medium" if rule.preview else "high",
            "problem.severity": _PROBLEM[rule.severity],
        },
    }


def _described(page: str) -> str:
    """Return the description of a rule in a paragraph or two; the help has it all."""
    before, _, after = page.partition("## What it does")
    does = after.partition("\n## ")[0]
    return "\n\n".join(filter(None, (before.strip(), does.strip())))


def _tags(rule: type[Rule]) -> list[str]:
    """Return the tags of a rule, to filter by."""
    family = rule.code.rstrip(digits)
    about = "memory" if family == "MEM" else "performance"
    return [about, "gpu", family]


def _result(
    finding: Finding, outcome: RecordingReport, codes: list[str], root: Path | None
) -> dict[str, Any]:
    text = finding.message
    if cost := words.cost(finding, outcome):
        text += f": {cost}"
    if finding.place.via:
        text += f", via {finding.place.via}"
    if finding.advice:
        text += f". Fix: {finding.advice}"
    location = _location(finding, outcome, root)
    return {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": _LEVEL[finding.severity],
        "message": {"text": _LINK.sub(r"\\[", text)},
        "locations": [location],
        "partialFingerprints": {
            # GitHub tells results apart by this one, and computes it from the source
            # where it is missing: what a line says does not make a finding another.
            "primaryLocationLineHash": f"{finding.fingerprint}:1",
            "traceq/v1": finding.fingerprint,
        },
        "properties": {
            "savesNanosecondsPerStep": finding.saves_ns,
            "costBytes": finding.cost_bytes,
            "trace": as_unicode(outcome.name),
        },
    }


def _fixes(finding: Finding, proposal: Proposal | None) -> dict[str, Any]:
    """Return the certain edit of a finding as whole lines; nothing without one."""
    if proposal is None:
        return {}
    changes = [
        {
            "artifactLocation": {"uri": _uri(hunk.file), "uriBaseId": _ROOT},
            "replacements": [
                {
                    "deletedRegion": _lines(hunk),
                    "insertedContent": {"text": hunk.after},
                }
            ],
        }
        for hunk in proposal.hunks
    ]
    text = f"{finding.code}: {proposal.edit.replace('_', ' ')}"
    return {"fixes": [{"description": {"text": text}, "artifactChanges": changes}]}


def _lines(hunk: Hunk) -> dict[str, int]:
    """Return the region of whole lines, without the end of the last one."""
    lines = hunk.before.split("\n")
    return {
        "startLine": hunk.line,
        "startColumn": 1,
        "endLine": hunk.line + len(lines) - 1,
        "endColumn": len(lines[-1]) + 1,
    }


def _location(
    finding: Finding, outcome: RecordingReport, root: Path | None
) -> dict[str, Any]:
    where = finding.place
    # A finding without a line stands where the program begins, else at the trace.
    at = where if where.file else outcome.entry or Place(_in(outcome.name, root), 1)
    start, end = at.lines or (1, 1)
    region = {"startLine": start} | ({"endLine": end} if end > start else {})
    location: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": _uri(at.source or ""), "uriBaseId": _ROOT},
            "region": region,
        }
    }
    # No two of them may be the same.
    names = dict.fromkeys(filter(None, (where.module, where.function)))
    if names:
        location["logicalLocations"] = [{"fullyQualifiedName": name} for name in names]
    return location


def _in(path: str, root: Path | None) -> str:
    """Return the path of a trace from the root; its name, if it is not under it."""
    if root is not None:
        with suppress(ValueError, OSError):
            return Path(path).resolve().relative_to(root.resolve()).as_posix()
    return Path(path).name if Path(path).is_absolute() else path


def _uri(path: str) -> str:
    """Return a reference relative to the root: code scanning takes no other."""
    # A colon in the first part of a relative reference would name a scheme.
    return PurePath("/", path.lstrip("/")).as_uri().removeprefix("file:///")
