"""Step time with the findings fixed: now, after each fix, and the floor."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from traceq.common import units
from traceq.report.lint import content as words
from traceq.report.page.parts.findings import cards_of
from traceq.report.page.section import Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.model.finding import Finding
    from traceq.model.lint_report import RecordingReport
    from traceq.report.page.section import Subject


class Row(NamedTuple):
    """One bar: what a step takes at some point, in percent of what it takes now."""

    label: str
    note: str
    time: str
    gpu: float
    """The GPU's work in it, or all of it where that is not known."""
    rest: float
    """The GPU's waits that no finding explains."""
    saved: float
    """Savings of the fix before it."""
    card: str = ""
    """The key of the finding's card."""


def fixes(subject: Subject) -> Section | None:
    """Return the bars; none where no finding saves time."""
    outcome = subject.outcome
    if not outcome.together or not outcome.step_ns:
        return None
    return Section(
        key=subject.key("fixes"),
        title="What fixes leave",
        template="fixes.html",
        context={
            "rows": list(_rows(subject)),
            "sentence": words.together(outcome),
            "idle": words.idle(outcome) or words.gpu(outcome),
        },
    )


def _rows(subject: Subject) -> Iterator[Row]:
    outcome = subject.outcome
    now = outcome.step_ns
    yield Row("now", "", units.time(now), 100.0, 0.0, 0.0)
    before, fixed = now, 0
    *_, last = outcome.together
    floor = last.step_ns if last.gpu_ns is None else last.gpu_ns
    cards = {card.number: card for card in cards_of(subject)}
    for fix in outcome.together:
        rest = last.step_ns - floor if fix is last else 0
        added = [cards[number] for number in _fixed(outcome, fixed, fix.findings)]
        label = f"fix {added[0].finding.code}" if len(added) == 1 else "fix the rest"
        yield Row(
            label=label,
            note=_note(added[0].finding)
            if len(added) == 1
            else f"{len(added)} findings",
            time=units.time(fix.step_ns),
            gpu=_percent(fix.step_ns - rest, now),
            rest=_percent(rest, now),
            saved=_percent(before - fix.step_ns, now),
            card=added[0].key if len(added) == 1 else "",
        )
        before, fixed = fix.step_ns, fix.findings
    note = "the GPU's work, without waits"
    yield Row("floor", note, units.time(floor), _percent(floor, now), 0.0, 0.0)


def _note(finding: Finding) -> str:
    """Return the name of a finding, and what is to be fixed before it."""
    if len(finding.after) != 1:
        return finding.name
    return f"{finding.name}, after {finding.after[0]}"


def _fixed(outcome: RecordingReport, first: int, end: int) -> list[int]:
    """Return the numbers of the findings that a bar fixes beside those before it."""
    saving = [
        number
        for number, finding in enumerate(outcome.findings)
        if not finding.minor and finding.saves_ns > 0
    ]
    return saving[first:end]


def _percent(ns: float, whole: float) -> float:
    return round(max(0.0, min(100.0, 100 * ns / whole)), 3)
