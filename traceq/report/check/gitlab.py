"""A check as a code-quality report of GitLab: an issue for each failing difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.formats.fixture_origin import ORIGIN
from traceq.report.base.gitlab import Issue, document
from traceq.report.check import content as words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.check.check import FixtureResult
    from traceq.check.difference import Difference


def render(results: Sequence[FixtureResult]) -> str:
    """Return a list of issues, at the line of the finding or at the fixture."""
    return document(
        [
            _issue(result, difference)
            for result in results
            for difference in result.differences
            if difference.fails and not result.written
        ]
    )


def _issue(result: FixtureResult, difference: Difference) -> Issue:
    finding = difference.finding
    text = f"{words.name(result)}: {words.kind(difference)} {words.line(difference)}"
    if finding is None or finding.place.file is None:
        return Issue(text, finding.code if finding else "check", _file(result))
    first, _ = finding.place.lines or (1, 1)
    return Issue(text, finding.code, finding.place.source or _file(result), first)


def _file(result: FixtureResult) -> str:
    return str(result.folder / ORIGIN)
