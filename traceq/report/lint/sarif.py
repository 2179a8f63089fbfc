"""Findings as SARIF 2.1.0, for code scanning: results at the user's file and line."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import orjson

from traceq import __version__
from traceq.finding import Severity
from traceq.report.base.text import as_unicode, plain_json
from traceq.report.lint import content as words

if TYPE_CHECKING:
    from traceq.finding import Finding
    from traceq.lint.engine import Outcome, Report
    from traceq.lint.pack import Rules

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
# SARIF makes a link of [text](target).
_LINK = re.compile(r"\[(?=[^\]]*\]\()")
_LEVEL = {Severity.info: "note", Severity.warning: "warning", Severity.error: "error"}


def render(report: Report, rules: Rules) -> str:
    """Return one SARIF log with one run."""
    codes = list(rules)
    run = {
        "tool": {
            "driver": {
                "name": "traceq",
                "version": __version__,
                "rules": [_rule(code, rules) for code in codes],
            }
        },
        "columnKind": "unicodeCodePoints",
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
            _result(finding, outcome, codes)
            for outcome in report.outcomes
            for finding in outcome.findings
        ],
    }
    found = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return plain_json(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode()) + "\n"


def _rule(code: str, rules: Rules) -> dict[str, Any]:
    rule = rules[code]
    return {
        "id": code,
        "name": rule.__name__,
        "shortDescription": {"text": rule.summary() or rule.name()},
        "fullDescription": {"text": rule.page() or rule.name()},
        "defaultConfiguration": {"level": _LEVEL[rule.severity]},
    }


def _result(finding: Finding, outcome: Outcome, codes: list[str]) -> dict[str, Any]:
    text = finding.message
    if cost := words.cost(finding, outcome):
        text += f": {cost}"
    if finding.advice:
        text += f". Fix: {finding.advice}"
    return {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": _LEVEL[finding.severity],
        "message": {"text": _LINK.sub(r"\\[", text)},
        "locations": [_location(finding, outcome)],
        "partialFingerprints": {"traceq/v1": finding.fingerprint},
        "properties": {
            "savesNanosecondsPerStep": finding.saves_ns,
            "costBytes": finding.cost_bytes,
            "trace": as_unicode(outcome.name),
        },
    }


def _location(finding: Finding, outcome: Outcome) -> dict[str, Any]:
    where = finding.place
    physical: dict[str, Any] = {
        "artifactLocation": {"uri": _uri(where.file or outcome.name)}
    }
    if where.file and where.lines:
        start, end = where.lines
        physical["region"] = {"startLine": start} | (
            {"endLine": end} if end > start else {}
        )
    location: dict[str, Any] = {"physicalLocation": physical}
    # No two of them may be the same.
    names = dict.fromkeys(filter(None, (where.module, where.function)))
    if names:
        location["logicalLocations"] = [{"fullyQualifiedName": name} for name in names]
    return location


def _uri(path: str) -> str:
    pure = PurePath(path)
    if pure.is_absolute():
        return pure.as_uri()
    # A colon in the first part of a relative reference would name a scheme.
    return PurePath("/", path).as_uri().removeprefix("file:///")
