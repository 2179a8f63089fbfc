"""The words of a check, the same in every format that people read."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from traceq.common.safe_text import printable
from traceq.common.words import counted
from traceq.report.base.text import at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.check.check import FixtureResult
    from traceq.check.difference import Difference

_PLACES = {"cpu": "without a GPU", "cuda": "on the GPU"}


def verdict(result: FixtureResult) -> str:
    """Return one sentence on a fixture."""
    failing = [difference for difference in result.differences if difference.fails]
    differences = counted(len(failing), "difference")
    if result.written:
        return f"{differences}; {', '.join(result.written)} written"
    if not result.compared:
        return "not compared"
    if failing:
        return differences
    others = [
        difference for difference in result.differences if difference.kind != "skipped"
    ]
    if others:
        return f"nothing worse, {counted(len(others), 'difference')}"
    if result.ran_on == "cpu" and not result.linted:
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


def work(results: Sequence[FixtureResult]) -> str:
    """Return what was done: programs that ran, traces that were linted, and why not.

    Empty if nobody was to run anything.
    """
    ran = Counter(result.ran_on for result in results if result.ran_on)
    left = Counter(result.not_run for result in results if result.not_run)
    if not ran and not left:
        return ""
    done = [
        f"ran {counted(number, 'program')} {_PLACES.get(place, '')}"
        for place, number in ran.items()
    ]
    if traces := sum(result.linted for result in results):
        done.append(f"linted {counted(traces, 'committed trace')}")
    reasons = [f"{printable(why)} ({number})" for why, number in left.items()]
    if len(left) == 1:
        reasons = [printable(why) for why in left]
    others = f"{counted(left.total(), 'program')} not run" if ran else "ran no program"
    return "; ".join(
        [
            " and ".join(done),
            *([f"{others}: {', '.join(reasons)}"] if reasons else []),
        ]
    )


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
