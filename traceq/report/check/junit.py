"""A check as JUnit XML: a test for each fixture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.report.base.junit import Case, document
from traceq.report.check import content as words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.check.check import FixtureResult
    from traceq.report.base.junit import Ending


def render(results: Sequence[FixtureResult]) -> str:
    """Return one suite; its name says what was run and what was linted."""
    done = words.work(results)
    name = f"traceq check: {done}" if done else "traceq check"
    return document([(name, [_case(result) for result in results])])


def _case(result: FixtureResult) -> Case:
    lines = [
        f"{words.kind(difference)} {words.line(difference)}"
        for difference in result.differences
    ]
    text = words.verdict(result)
    return Case(
        words.name(result), "traceq check", _ending(result), text, "\n".join(lines)
    )


def _ending(result: FixtureResult) -> Ending:
    if result.unable:
        return "error"
    if result.fails:
        return "failure"
    return "passed" if result.compared else "skipped"
