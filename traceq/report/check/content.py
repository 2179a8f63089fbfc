"""The words of a check, the same in every format that people read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from traceq.report.base.text import at, printable
from traceq.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.check.check import Difference, FixtureResult


def verdict(result: FixtureResult) -> str:
    """Return one sentence on a fixture."""
    failing = [one for one in result.differences if one.fails]
    differences = counted(len(failing), "difference")
    if result.written:
        return f"{differences}; {', '.join(result.written)} written"
    if failing:
        return differences
    if result.differences:
        return f"nothing worse, {counted(len(result.differences), 'difference')}"
    return (
        f"{counted(result.findings, 'finding')} as expected,"
        f" {counted(result.budgets, 'budget')} kept"
    )


def line(difference: Difference) -> str:
    """Return what a difference is about and what it is."""
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
    as_expected = f"{failing} not as expected" if failing else "all as expected"
    return f"{checked}, {as_expected}"
