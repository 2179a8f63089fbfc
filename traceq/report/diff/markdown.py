"""A comparison as Markdown, for a comment on a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.report.base.markdown import escaped
from traceq.report.diff import content as words
from traceq.report.diff import memory as memory_diff_content
from traceq.report.diff import modules as by_module
from traceq.report.diff.causes import signed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceq.differ.compare import Diff
    from traceq.differ.limits import Broken


def render(diff: Diff, broken: Sequence[Broken] = ()) -> str:
    """Return a section: the verdict, the numbers, the causes, the findings."""
    return "\n".join(_lines(diff, broken)) + "\n"


def _lines(diff: Diff, broken: Sequence[Broken]) -> Iterator[str]:
    yield from _numbers(diff, broken)
    yield from _causes(diff)
    yield from _modules(diff)
    yield ""
    yield f"Findings: {words.findings_verdict(diff.findings)}"
    if diff.findings.changes:
        yield ""
    for change in diff.findings.changes:
        yield f"- **{change.state}** {escaped(words.finding_line(change))}"
    if diff.memory is not None:
        yield ""
        yield memory_diff_content.markdown(diff.memory).rstrip()
    caveats = words.caveats(diff)
    if caveats:
        yield ""
        yield "Caveats:"
        yield ""
    for caveat in caveats:
        yield f"- {escaped(caveat)}"


def _numbers(diff: Diff, broken: Sequence[Broken]) -> Iterator[str]:
    for failure in words.failures(broken):
        yield f"**{escaped(failure)}**"
        yield ""
    yield f"### {escaped(words.headline(diff))}"
    yield ""
    for title, name, bound in words.sides(diff):
        yield f"- {title} {escaped(name)}: {escaped(bound)}"
    yield ""
    yield f"| {words.compared(diff)} | before | after | change |"
    yield "| --- | ---: | ---: | ---: |"
    for row in words.metric_rows(diff):
        yield f"| {' | '.join(map(escaped, row))} |"


def _causes(diff: Diff) -> Iterator[str]:
    reasons = words.reasons(diff)
    if reasons:
        yield ""
        yield "| change | why | where |"
        yield "| ---: | --- | --- |"
    for reason in reasons:
        where = "<br>".join(map(escaped, filter(None, (reason.where, *reason.details))))
        yield f"| {escaped(reason.change)} | {escaped(reason.text)} | {where} |"
    if reasons:
        yield f"| {escaped(signed(diff.change_ns))} | together | |"
    for side, calls in (("before", diff.calls.before), ("after", diff.calls.after)):
        if calls:
            yield ""
            yield f"Only {side}: {escaped(words.only(calls))}"


def _modules(diff: Diff) -> Iterator[str]:
    if diff.modules is None:
        return
    yield ""
    yield by_module.TITLE
    yield ""
    yield f"| {' | '.join(by_module.TITLES)} |"
    yield "| --- | ---: | ---: | ---: | ---: | --- |"
    for row in by_module.rows(diff.modules):
        yield f"| {' | '.join(map(escaped, row))} |"
    for note in by_module.notes(diff.modules):
        yield ""
        yield escaped(note)
