"""The pages of --format html: each command shows the parts that it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.sweep import point_of, sweeps
from traceq.model.lint_report import RecordingReport
from traceq.model.recording import Recording
from traceq.report.base.content import telling_names
from traceq.report.page.page import render
from traceq.report.page.parts import changes, ranks
from traceq.report.page.parts.comparison import comparison
from traceq.report.page.parts.findings import findings
from traceq.report.page.parts.gpu_account import gpu_account
from traceq.report.page.parts.history import history_sections
from traceq.report.page.parts.kernels import kernels
from traceq.report.page.parts.layers import layers
from traceq.report.page.parts.lengths import lengths
from traceq.report.page.parts.memory import of_summaries
from traceq.report.page.parts.roofline import roofline
from traceq.report.page.parts.scaling import scaling
from traceq.report.page.parts.step_bar import step_bar
from traceq.report.page.parts.sweep import sweep_sections
from traceq.report.page.section import Section, Subject
from traceq.report.ranks.content import content as ranks_content
from traceq.report.summary.content import content as summary_content

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from traceq.analysis.memory.scaling import Growth
    from traceq.analysis.memory.summary import MemorySummary
    from traceq.analysis.summary import Summary
    from traceq.differ.compare import Diff, MemoryChange
    from traceq.differ.jobs import JobDiff
    from traceq.differ.limits import Broken
    from traceq.history.series import Series
    from traceq.model.lint_report import Report
    from traceq.model.trace import Trace
    from traceq.ranks.analysis import Analysis

OF_TRACE: tuple[Callable[[Subject], Section | None], ...] = (
    gpu_account,
    roofline,
    lengths,
    layers,
    kernels,
)
"""Parts for one trace, beside its findings."""


def summary_page(pairs: Sequence[tuple[Summary, Trace]]) -> str:
    """Return the page on the time of a step; of several traces, their comparison."""
    names = telling_names([summary.facts.path for summary, _ in pairs])
    if len(pairs) > 1:
        several = [(summary, trace, None) for summary, trace in pairs]
        return render(f"{len(pairs)} recordings", compared(several))
    ((summary, trace),) = pairs
    subject = Subject(_unlinted(summary), Recording(summary.facts.path, trace))
    words = summary_content(summary)
    facts = Section(
        key="summary",
        title="Summary",
        template="tables.html",
        context={
            "facts": words.facts,
            "tables": [
                table for table in words.tables if table.columns[0].title == "GPU time"
            ],
            "notes": [f"Incomplete: {warning}" for warning in words.warnings],
        },
    )
    parts = [facts, *(part(subject) for part in (step_bar, *OF_TRACE))]
    return render(names[0], _there(parts))


def compared(recordings: Sequence[tuple[Summary, Trace, int | None]]) -> list[Section]:
    """Return the sections on several traces: side by side, and by their labels.

    Each comes with the peak of its memory snapshot, if it has one.
    """
    points = [
        point_of(
            trace,
            summary.labels,
            round(summary.bound.step_ns) if summary.bound.measured else None,
            peak,
        )
        for summary, trace, peak in recordings
    ]
    table = comparison([summary for summary, _, _ in recordings])
    return [table, *sweep_sections(sweeps(points))]


def memory_page(summaries: Sequence[MemorySummary]) -> str:
    """Return the page on the GPU's memory over time, and at its peak."""
    name = telling_names([summary.name for summary in summaries])[0]
    title = f"GPU memory: {name}" if len(summaries) == 1 else "GPU memory"
    return render(title, _there([of_summaries(summaries, "memory")]))


def scaling_page(
    label: str,
    growths: Sequence[Growth],
    values: Sequence[float],
    names: Sequence[str],
) -> str:
    """Return the page on the growth of memory with a label of recordings."""
    section = scaling(label, growths, values, names)
    return render(f"GPU memory of {len(names)} recordings", [section])


def diff_page(diff: Diff, broken: Sequence[Broken] = ()) -> str:
    """Return the page on the change from one trace to another, and its causes."""
    title = _both((diff.before.name, diff.after.name))
    return render(title, changes.of_diff(diff, broken))


def snapshots_page(change: MemoryChange, broken: Sequence[Broken] = ()) -> str:
    """Return the page on the change from one memory snapshot to another."""
    return render(_both(change.names), changes.of_snapshots(change, broken))


def jobs_page(diff: JobDiff, broken: Sequence[Broken] = ()) -> str:
    """Return the page on the change from one job of many ranks to another."""
    names = (diff.before.name, diff.after.name)
    return render(_both(names), changes.of_jobs(diff, broken))


def ranks_page(
    analysis: Analysis, report: Report, pages: Mapping[int, str] | None = None
) -> str:
    """Return the page on the ranks that hold a job up, and the causes.

    ``pages`` are the addresses of the pages of ranks, by number, where there are some.
    """
    title = f"Job: {ranks_content(analysis).screen.title}"
    return render(title, job_sections(analysis, report, pages or {}))


def job_sections(
    analysis: Analysis, report: Report, pages: Mapping[int, str]
) -> list[Section]:
    """Return the sections on a job of many ranks, with links to their pages."""
    of_lint = [findings(Subject(outcome)) for outcome in report.outcomes]
    return _there(
        [
            ranks.job(analysis, pages),
            ranks.rank_map(analysis, pages),
            ranks.what_if(analysis),
            *of_lint,
            ranks.figures(analysis, pages),
        ]
    )


def history_page(series: Sequence[Series], name: str) -> str:
    """Return the page on runs over time."""
    return render(f"History: {name}", history_sections(series))


def _both(names: tuple[str, str]) -> str:
    return " → ".join(telling_names(names))


def _unlinted(summary: Summary) -> RecordingReport:
    """Return the outcome of a recording that was not linted."""
    return RecordingReport(
        name=summary.facts.path,
        facts=summary.facts,
        bound=summary.bound,
        steps=summary.steady.count,
        step_ns=round(summary.bound.step_ns),
        findings=(),
        together=(),
        below_min_cost=0,
        skipped=(),
        crashed=(),
        allowed=(),
        ran=0,
    )


def _there(sections: Iterable[Section | None]) -> list[Section]:
    return [section for section in sections if section is not None]
