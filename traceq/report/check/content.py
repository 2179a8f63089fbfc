"""The words of a check, the same in every format that people read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.report.base.text import place as written_place
from traceq.report.base.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.check.check import Difference, Result


def verdict(result: Result) -> str:
    """Return one sentence on a fixture."""
    red = [one for one in result.differences if one.red]
    if result.written:
        return f"{counted(len(red), 'difference')}; {', '.join(result.written)} written"
    if red:
        return counted(len(red), "difference")
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
    where = finding.place
    source = written_place(where.file, where.line, where.function)
    at = source or printable(where.module or "")
    head = f"{finding.code} {printable(finding.name)}"
    return f"{head} at {at}: {text}" if at else f"{head}: {text}"


def kind(difference: Difference) -> str:
    """Return the word that a difference begins with."""
    return difference.kind if difference.red else f"({difference.kind})"


def name(result: Result) -> str:
    """Return the fixture's folder."""
    return printable(str(result.folder))


def total(results: Sequence[Result]) -> str:
    """Return one sentence on all fixtures."""
    red = sum(result.red for result in results)
    written = sum(bool(result.written) for result in results)
    checked = counted(len(results), "fixture")
    if written:
        text = f"{checked}, {written} written anew: read what changed before you commit"
        return f"{text}; {red} still wrong" if red else text
    return f"{checked}, {red} not as expected" if red else f"{checked}, all as expected"


def counted(count: int, what: str) -> str:
    """Return a number of things."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
