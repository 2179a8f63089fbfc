"""Sections of a page, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.report.base.content import telling_names
from traceq.report.page.page import render
from traceq.report.page.parts.findings import findings
from traceq.report.page.parts.fixes import fixes
from traceq.report.page.parts.flame import flame
from traceq.report.page.parts.memory import memory
from traceq.report.page.parts.step_bar import step_bar
from traceq.report.page.parts.timeline import timeline
from traceq.report.page.parts.verdict import verdict
from traceq.report.page.section import Subject
from traceq.report.page.several import several
from traceq.report.page.views import OF_TRACE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from traceq.model.lint_report import Report
    from traceq.model.recording import Recording
    from traceq.report.page.section import Link, Section

OF_LINT: tuple[Callable[[Subject], Section | None], ...] = (
    verdict,
    step_bar,
    fixes,
    findings,
)
"""Parts that need only the findings: --format html of lint."""
OF_ONE = (*OF_LINT, timeline, flame, *OF_TRACE, memory)
"""Parts of a page on one recording."""
OF_EACH = OF_LINT
"""Parts for each of several recordings, after those that compare them."""


def report_page(
    recordings: Sequence[Recording],
    report: Report,
    step: int | None = None,
    labels: Sequence[Mapping[str, str]] = (),
) -> str:
    """Return the page of recordings that were linted, in the same order.

    The step is the one that is drawn, if one was asked for; ``labels`` are what the
    user says of each recording, by default those of its run.
    """
    parts = OF_ONE if len(recordings) == 1 else OF_EACH
    subjects = [
        Subject(outcome, recording, number if len(recordings) > 1 else 0, step)
        for number, (outcome, recording) in enumerate(
            zip(report.outcomes, recordings, strict=True), 1
        )
    ]
    first = several(subjects, labels) if len(subjects) > 1 else []
    return render(title_of(report), [*first, *_sections(subjects, parts)])


def rank_page(recording: Recording, report: Report, number: int, job: Link) -> str:
    """Return the page of one rank of a job, with a link to the page of the job."""
    subject = Subject(report.outcomes[0], recording)
    title = f"Rank {number}: {title_of(report)}"
    return render(title, _sections([subject], OF_ONE), up=job)


def lint_page(report: Report) -> str:
    """Return the page of what lint found."""
    several = len(report.outcomes) > 1
    parts = [
        Subject(outcome, number=number if several else 0)
        for number, outcome in enumerate(report.outcomes, 1)
    ]
    return render(title_of(report), _sections(parts, OF_LINT))


def title_of(report: Report) -> str:
    """Return the subject of the page: the recording, or the number of recordings."""
    names = telling_names([outcome.name for outcome in report.outcomes])
    if len(names) == 1:
        return names[0]
    return f"{len(names)} recordings"


def _sections(
    subjects: Sequence[Subject], parts: Sequence[Callable[[Subject], Section | None]]
) -> list[Section]:
    made = (part(subject) for subject in subjects for part in parts)
    return [section for section in made if section is not None]
