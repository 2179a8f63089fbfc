"""The words of a check, the same in every format that people read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from traceq.common.safe_text import printable
from traceq.common.words import counted
from traceq.report.base.text import at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.check.check import FixtureResult
    from traceq.check.difference import Difference


def verdict(result: FixtureResult) -> str:
    """Return one sentence on a fixture."""
    failing = [one for one in result.differences if one.fails]
    differences = counted(len(failing), "difference")
    if result.written:
        return f"{differences}; {', '.join(result.written)} written"
    if not result.compared:
        return "not compared"
    if failing:
        return differences
    others = [one for one in result.differences if one.kind != "skipped"]
    if others:
        return f"nothing worse, {counted(len(others), 'difference')}"
    if result.ran_on == "cpu":
        return f"{counted(result.budgets, 'CPU budget')} kept"
    return (
        f"{counted(result.findings, 'finding')} as expected,"
        f" {counted(result.budgets, 'budget')} kept"
    )


def line(difference: Difference) -> str:
    """Return the subject of a difference, and the difference."""
    finding = difference.finding
    text = printable(difference.text)
    if finding is None:
        return text
    place = finding.place
    place = replace(place, module=None) if place.file else place
    return f"{finding.code} {printable(finding.name)}{at(place)}: {text}"


def kind(difference: Difference) -> str:
    """Return the word that a difference begins with."""
    return difference.kind if difference.fails else f"({difference.kind})"


def name(result: FixtureResult) -> str:
    """Return the fixture's folder."""
    return printable(str(result.folder))


def total(results: Sequence[FixtureResult]) -> str:
    """Return one sentence on all fixtures."""
    failing = sum(result.fails for result in results)
    written = sum(bool(result.written) for result in results)
    checked = counted(len(results), "fixture")
    if written:
        text = f"{checked}, {written} written: read what changed before you commit"
        return f"{text}; {failing} still not as expected" if failing else text
    compared = sum(result.compared for result in results)
    if compared < len(results):
        checked = f"{checked}, {len(results) - compared} not compared"
        failing = sum(result.fails and result.compared for result in results)
    rest = "all" if compared == len(results) else "the others" if compared else ""
    if failing:
        return f"{checked}, {failing} not as expected"
    return f"{checked}, {rest} as expected" if rest else checked
