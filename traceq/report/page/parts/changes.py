"""Changes from one recording to another: the waterfall of causes, and the rest."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from traceq.common.units import time
from traceq.report.base.columns import Column
from traceq.report.base.content import TextTable
from traceq.report.diff import content as words
from traceq.report.diff import jobs as job_words
from traceq.report.diff import memory as memory_words
from traceq.report.diff import modules as by_module
from traceq.report.page import charts
from traceq.report.page.section import Section

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceq.analysis.memory.diff import MemoryDiff
    from traceq.differ.compare import Diff, MemoryChange
    from traceq.differ.findings import FindingChanges
    from traceq.differ.jobs import JobDiff
    from traceq.differ.limits import Broken
    from traceq.report.page.charts import Tip

_FULL = 100.0


class Bar(NamedTuple):
    """A cause, from the length that a step has before it to the one after."""

    kind: str
    """``whole``, ``more`` or ``less``."""
    change: str
    text: str
    details: tuple[str, ...]
    left: float
    width: float
    """Width in percent, from ``left``."""
    tip: Tip
    ns: float


def of_diff(diff: Diff, broken: Sequence[Broken] = ()) -> list[Section]:
    """Return the sections of a comparison of two traces."""
    names = (diff.before.name, diff.after.name)
    titles = (words.compared(diff), "before", "after", "change")
    sections = [
        Section(
            key="change",
            title="What changed",
            template="change.html",
            context={
                "lead": words.headline(diff),
                "failures": words.failures(broken),
                "names": names,
                "sides": [f"{title}: {bound}" for title, _, bound in words.sides(diff)],
                "tables": [_table(titles, words.metric_rows(diff))],
                "notes": [
                    f"Only {side}: {words.only(names)}"
                    for side, names in (
                        ("before", diff.calls.before),
                        ("after", diff.calls.after),
                    )
                    if names
                ],
                "caveats": words.caveats(diff),
            },
        )
    ]
    sections += filter(None, [_waterfall(diff)])
    if diff.modules is not None:
        sections.append(
            _plain(
                "changed-modules",
                by_module.TITLE,
                [_table(by_module.TITLES, by_module.rows(diff.modules))],
                list(by_module.notes(diff.modules)),
            )
        )
    sections.append(_findings(diff.findings))
    if diff.memory is not None:
        sections.append(_memory(diff.memory))
    return sections


def of_snapshots(change: MemoryChange, broken: Sequence[Broken] = ()) -> list[Section]:
    """Return the sections of a comparison of two memory snapshots."""
    head = Section(
        key="change",
        title="What changed",
        template="change.html",
        context={
            "lead": memory_words.headline(change.memory),
            "failures": words.failures(broken),
            "names": change.names,
            "sides": [],
            "tables": [],
            "notes": [],
            "caveats": [],
        },
    )
    return [head, _memory(change.memory), _findings(change.findings)]


def of_jobs(diff: JobDiff, broken: Sequence[Broken] = ()) -> list[Section]:
    """Return the sections of a comparison of two jobs of many ranks."""
    sides = job_words.sides(diff)
    head = Section(
        key="change",
        title="What changed",
        template="change.html",
        context={
            "lead": job_words.headline(diff),
            "failures": words.failures(broken),
            "names": [name for _, name, _ in sides],
            "sides": [f"{title}: {verdict.rstrip('.')}" for title, _, verdict in sides],
            "tables": list(job_words.tables(diff)),
            "notes": [],
            "caveats": words.caveats(diff),
        },
    )
    rows = [
        (straggler.state, job_words.straggler(straggler, diff))
        for straggler in diff.stragglers
    ]
    table = TextTable((Column("state"), Column("rank")), tuple(rows))
    late = _plain("changed-ranks", "Who holds the others up", [table], [])
    return [head, *([late] if rows else []), _findings(diff.findings)]


def _waterfall(diff: Diff) -> Section | None:
    bars = list(_bars(diff))
    if not bars:
        return None
    return Section(
        key="causes",
        title="Why, biggest first",
        template="causes.html",
        context={"bars": bars},
    )


def _bars(diff: Diff) -> Iterator[Bar]:
    """Yield the causes as steps from one length of a step to the other."""
    reasons = words.reasons(diff)
    if not reasons:
        return
    before, after = diff.before.step.ns, diff.after.step.ns
    levels = list(accumulate((reason.ns for reason in reasons), initial=before))
    low, high = min(0.0, *levels), max(before, after, *levels)

    def bar(
        kind: str, change: str, text: str, span: tuple[float, float], *more: str
    ) -> Bar:
        whole = (high - low) or 1.0
        return Bar(
            kind,
            change,
            text,
            tuple(name for name in more if name),
            round(_FULL * (min(span) - low) / whole, 3),
            round(_FULL * abs(span[1] - span[0]) / whole, 3),
            charts.tip(f"{time(span[0])} to {time(span[1])}"),
            span[1] - span[0],
        )

    yield bar("whole", time(before), "before", (0.0, before))
    for reason, start, end in zip(reasons, levels, levels[1:], strict=False):
        kind = "more" if reason.ns > 0 else "less"
        details = (reason.where, *reason.details)
        yield bar(kind, reason.change, reason.text, (start, end), *details)
    yield bar("whole", time(after), "after", (0.0, after))


def _findings(changes: FindingChanges) -> Section:
    rows = [(change.state, words.finding_line(change)) for change in changes.changes]
    table = TextTable((Column("state"), Column("finding")), tuple(rows))
    verdict = words.findings_verdict(changes)
    return _plain(
        "changed-findings",
        "Findings that changed",
        [table] if rows else [],
        [f"{verdict[:1].upper()}{verdict[1:]}."],
    )


def _memory(memory: MemoryDiff) -> Section:
    return Section(
        key="changed-memory",
        title="Memory that changed",
        template="changed_memory.html",
        context={
            "lead": memory_words.headline(memory),
            "devices": list(memory_words.devices(memory)),
        },
    )


def _plain(
    key: str, title: str, tables: Sequence[TextTable], notes: Sequence[str]
) -> Section:
    return Section(
        key=key,
        title=title,
        template="tables.html",
        context={"facts": [], "tables": tables, "notes": notes},
    )


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> TextTable:
    first, *others = titles
    columns = (Column(first), *(Column(title, number=True) for title in others))
    return TextTable(columns, tuple(map(tuple, rows)))
