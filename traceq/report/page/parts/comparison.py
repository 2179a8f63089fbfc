"""Several recordings side by side: a row and a bar each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from traceq.common import units
from traceq.report import bound as bound_words
from traceq.report.base.content import telling_names
from traceq.report.page import charts
from traceq.report.page.colors import color
from traceq.report.page.section import Section
from traceq.report.summary.overview import overview

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.summary import Summary
    from traceq.report.page.charts import Tip

_FULL = 100.0


class Part(NamedTuple):
    """A piece of a bar, in percent of the longest step."""

    color: str
    left: float
    width: float
    tip: Tip


class Bar(NamedTuple):
    """A recording's step by cause."""

    name: str
    time: str
    ns: float
    parts: list[Part]


def comparison(summaries: Sequence[Summary]) -> Section:
    """Return the table and the bars of several traces."""
    names = telling_names([summary.facts.path for summary in summaries])
    longest = max(summary.bound.step_ns for summary in summaries) or 1.0
    rows_with_value = [
        (name, summary)
        for name, summary in zip(names, summaries, strict=True)
        if summary.bound.bottleneck is not None
    ]
    causes = dict.fromkeys(
        cause
        for _, summary in rows_with_value
        for cause, _ in bound_words.parts(summary.bound)
    )
    legend: dict[str, list[str]] = {}
    for cause in causes:
        legend.setdefault(color(cause), []).append(bound_words.cause_name(cause))
    return Section(
        key="comparison",
        title="Comparison",
        template="comparison.html",
        context={
            "table": overview(summaries),
            "bars": [_bar(name, summary, longest) for name, summary in rows_with_value],
            "legend": [
                (name, ", ".join(dict.fromkeys(of))) for name, of in legend.items()
            ],
        },
    )


def _bar(name: str, summary: Summary, longest: float) -> Bar:
    bound = summary.bound
    parts, left = [], 0.0
    for cause, ns in bound_words.parts(bound):
        width = min(_FULL * ns / longest, _FULL - left)
        tip = charts.tip(
            bound_words.cause_name(cause),
            ("time", units.time(ns)),
            ("share", units.share(ns, bound.step_ns)),
        )
        parts.append(Part(color(cause), round(left, 3), round(width, 3), tip))
        left += width
    return Bar(name, units.time(bound.step_ns), bound.step_ns, parts)
