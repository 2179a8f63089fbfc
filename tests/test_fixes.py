"""A fix and its example say the same: dtypes, names of functions, and places."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from linting import bundled_rules, example_findings, linted

from traceq.linter.rule import Bad

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from traceq.linter import Finding

_DTYPE = re.compile(r"\btorch\.(b?float\d+)\b")
_WORD = re.compile(r"\b(b?float\d+)\b")
# What code calls by its module: F.rms_norm, nn.LSTM, torch.bmm.
_CALL = re.compile(r"\b(?:F|nn(?:\.functional)?|torch(?:\.\w+)*)\.(\w+)\b")
_PATCHED = re.compile(r"^\+ (\w+)\.forward = ", re.MULTILINE)
_IN = re.compile(r"^in (?!your own version of )([^:]+): ")
_SAME = re.compile(r"\b(\d[\d,]*)(?: is)? (?:to|becomes|->) \1\b")
_DTYPES = {"bfloat16", "float16", "float32"}


def disagreements(finding: Finding) -> list[str]:
    """Return where the advice, the example and the place of a finding differ."""
    result = []
    added = "\n".join(
        line for line in finding.example.splitlines() if line.startswith("+")
    )
    evidence = " ".join(f"{item.name} {item.note}" for item in finding.evidence)
    named = set(_WORD.findall(f"{finding.message} {finding.advice} {evidence}"))
    shown = set(_DTYPE.findall(added))
    advised = set(_DTYPE.findall(finding.advice))
    if (named and shown - named) or (advised and shown - advised):
        result.append(f"dtypes: {shown} in the example of {advised or named}")
    calls, wanted = (
        set(_CALL.findall(text)) - _DTYPES for text in (added, finding.advice)
    )
    if calls and wanted and not wanted & set(re.findall(r"\w+", added)):
        result.append(f"names: {calls} in the example of {wanted}")
    removed = [line[1:] for line in finding.example.splitlines() if line[:1] == "-"]
    if removed and removed == [line[1:] for line in added.splitlines()]:
        result.append("nothing: the example is the same before and after")
    if same := _SAME.search(finding.advice):
        result.append(f"nothing: {same[0]}")
    module = finding.place.module or ""
    result += [
        f"module: {name} is not in {module}"
        for name in _PATCHED.findall(added)
        if module and name not in module
    ]
    at = _IN.match(finding.advice)
    if at and at[1] not in (finding.place.function, finding.place.file):
        result.append(f"place: {at[1]} is not {finding.place.function}")
    if "<module>" in finding.advice:
        result.append("place: <module> is no function")
    return result


def of_all(findings: Iterable[Finding]) -> list[str]:
    """Return the disagreements of findings, with their codes."""
    return [
        f"{finding.code} {text}"
        for finding in findings
        for text in disagreements(finding)
    ]


def test_the_fixes_of_a_fixture_agree_with_their_examples(fixture_trace: Path) -> None:
    assert of_all(linted(fixture_trace).findings) == []


@pytest.mark.parametrize("code", sorted(bundled_rules()))
def test_the_fixes_of_a_drawing_agree_with_their_examples(code: str) -> None:
    result = [
        example_findings(code, number)
        for number, example in enumerate(bundled_rules()[code].examples)
        if isinstance(example, Bad)
    ]

    assert [text for row in result for text in of_all(row)] == []
