"""Head of a page on several recordings: their comparison and their differences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.summary import summarise
from traceq.differ.compare import compare, examine
from traceq.report.page.parts.changes import of_diff
from traceq.report.page.views import compared

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceq.report.page.section import Section, Subject

_TWO = 2


def several(
    subjects: Sequence[Subject], labels: Sequence[Mapping[str, str]] = ()
) -> list[Section]:
    """Return the comparison of traces, sweeps by label and, of two, the causes."""
    traces = [
        (subject, subject.recording, subject.recording.trace, at)
        for at, subject in enumerate(subjects)
        if subject.recording and subject.recording.trace
    ]
    if len(traces) < _TWO:
        return []
    summaries = []
    for subject, recording, trace, at in traces:
        own_labels = labels[at] if labels else None
        summary = summarise(trace, step_ns=recording.step_ns, labels=own_labels)
        peak = subject.outcome.memory
        summaries.append((summary, trace, peak.allocated if peak else None))
    sections = compared(summaries)
    if len(traces) == _TWO and len(subjects) == _TWO:
        halves = [examine(one, subject.outcome) for subject, one, _, _ in traces]
        sections += of_diff(compare(*halves))
    return sections
