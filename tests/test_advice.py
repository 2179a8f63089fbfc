"""Advice of one lint: each finding says what to do, and none what another undoes."""

from __future__ import annotations

import re
from itertools import combinations
from typing import TYPE_CHECKING

import pytest
from linting import bundled_rules, linted

from traceq.model.finding import Finding, Place, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

# What advice asks for, and what other advice may that undoes it.
OPPOSITE = (
    (
        r"\b(pin|pinned) (the tensor|memory|one buffer)",
        r"\bmake (it|the \w+) on the GPU",
    ),
    (r"\bpin the tensor", r"\bdraw the numbers on the GPU"),
    (r"\bfused=True\b", r"\b(drop|without) fused=True"),
    (r"channels_last", r"\b(keep|stay in) NCHW"),
    (r"\bdynamic=True\b", r"\bdynamic=False\b"),
    (r"\bpad\b.*\b(sizes|longest)\b", r"\b(remove|drop|leave out) the padding"),
    (r"(?<!not )\bcompile the model\b", r"\b(do not|never) compile\b"),
    (r"\bkeep .* in float32\b", r"\bkeep .* in (half|bfloat16|float16)\b"),
    (r"\bmore workers\b", r"\bfewer (DataLoader )?workers\b"),
)
# Of a whole program, whatever the line.
OF_PROGRAM = ((r"\blarger batch\b", r"\bsmaller batch\b"),)


def opposites(findings: Iterable[Finding]) -> Iterator[tuple[str, str]]:
    """Yield the codes of findings that advise opposite things for one line."""
    for finding, other in combinations(findings, 2):
        alike = finding.place.line and (
            (finding.place.file, finding.place.line)
            == (other.place.file, other.place.line)
        )
        for pairs, holds in ((OPPOSITE, alike), (OF_PROGRAM, True)):
            for first, second in pairs:
                for left, right in ((finding, other), (other, finding)):
                    undone = re.search(first, left.advice) and re.search(
                        second, right.advice
                    )
                    if holds and undone:
                        yield left.code, right.code


def changes_nothing(example: str) -> bool:
    """Return whether a diff has the same code before and after."""
    before, after = (
        [line[1:].strip() for line in example.splitlines() if line.startswith(sign)]
        for sign in "-+"
    )
    return bool(before or after) and before == after


def same_before_and_after(text: str) -> list[str]:
    """Return what a sentence names before and after a change, if that is the same."""
    changes = re.findall(
        r"(?:instead of|not|from) (`[^`]+`|\[[\d, ]+\]|[\w.]+\([^)]*\))"
        r"(?:,? (?:use|write|to|but|with)) (`[^`]+`|\[[\d, ]+\]|[\w.]+\([^)]*\))",
        text,
    )
    return [before for before, after in changes if before == after]


def regular(path: Path) -> list[Finding]:
    """Return the findings of a recording that are not minor."""
    return [finding for finding in linted(path).findings if not finding.minor]


def test_each_finding_above_minor_says_what_to_do(real_trace: Path) -> None:
    silent = [
        finding.code for finding in regular(real_trace) if len(finding.advice) < 10
    ]

    assert silent == []


def test_no_two_findings_advise_opposite_things_for_one_line(real_trace: Path) -> None:
    assert [*opposites(regular(real_trace))] == []


def test_no_finding_has_the_same_before_and_after(real_trace: Path) -> None:
    findings = regular(real_trace)

    assert [item.code for item in findings if changes_nothing(item.example)] == []
    assert [
        item.code
        for item in findings
        if same_before_and_after(f"{item.message}; {item.advice}")
    ] == []


def test_no_example_of_a_page_has_the_same_before_and_after() -> None:
    codes = [
        code
        for code, rule in bundled_rules().items()
        for example in re.findall(r"```diff\n(.*?)\n```", rule.page(), re.DOTALL)
        if changes_nothing(example)
    ]

    assert codes == []


def advising(advice: str, line: int = 3) -> Finding:
    return Finding(
        code="ABC001",
        name="a",
        severity=Severity.warning,
        message="",
        advice=advice,
        place=Place("a.py", line),
        subject="a",
        count=1,
    )


@pytest.mark.parametrize(
    ("one", "other", "line", "count"),
    [
        ("pin the tensor where it is created", "draw the numbers on the GPU", 3, 1),
        ("pin the tensor where it is created", "draw the numbers on the GPU", 4, 0),
        ("with a larger batch", "use less (smaller batch)", 4, 1),
        ("pass fused=True", "pass fused=True", 3, 0),
    ],
)
def test_opposite_advice_is_seen(one: str, other: str, line: int, count: int) -> None:
    findings = advising(one), advising(other, line)

    assert len([*opposites(findings)]) == count


def test_a_change_that_changes_nothing_is_seen() -> None:
    assert changes_nothing("- a = b()\n+ a = b()")
    assert not changes_nothing("+ a = b()")
    assert same_before_and_after("instead of `a`, use `a`") == ["`a`"]
