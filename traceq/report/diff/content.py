"""The words of a comparison, the same in every format that people read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceq.common.safe_text import printable
from traceq.common.units import average, number, size, time
from traceq.common.words import counted, listed
from traceq.differ.kinds import ALL_OVER
from traceq.report import bound as bound_words
from traceq.report.base.columns import Column
from traceq.report.base.content import Content, TextTable
from traceq.report.base.text import place as written_place
from traceq.report.base.text import where
from traceq.report.diff.causes import (
    a_step,
    cause_details,
    cause_text,
    cause_where,
    op_name,
    signed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.differ.causes import Cause
    from traceq.differ.compare import Diff
    from traceq.differ.findings import FindingChange, FindingChanges
    from traceq.differ.jobs import JobDiff
    from traceq.differ.limits import Broken
    from traceq.differ.metrics import Metric
    from traceq.differ.steps import Step

# Causes smaller than this share of the step are summed up; those that are not a change
# of the program vary by more.
_WORTH_NAMING = 0.01
_VARIES = 0.05
_OF_CHANGE = 0.1
_MOST_CAUSES = 10
_MOST_CALLS = 6
_NOT_SURE = 0.34
# From this many percent on, how many times as much is easier to read.
_TIMES_OVER = 1000

# Parts of the change that no change of the program explains.
_RESIDUALS = ("same launches", "not in the trace")

_TITLES = {
    "step": "step",
    "gpu busy": "GPU busy",
    "idle": "GPU idle",
    "launches": "launches",
    "kernels": "kernels",
    "syncs": "syncs",
    "copies": "copies",
    "memory": "peak memory",
    "waiting": "waiting",
    "transfer": "transfer",
    "slowdown": "slowdown",
}
_TIMES = ("step", "gpu busy", "idle", "waiting", "transfer")


@dataclass(frozen=True)
class Reason:
    """One cause in words."""

    ns: float
    text: str
    where: str
    """The ops and the place, or empty."""
    details: tuple[str, ...] = ()

    @property
    def change(self) -> str:
        """By how much the step is longer for it."""
        return signed(self.ns)


def content(diff: Diff, broken: Sequence[Broken] = ()) -> Content:
    """Return a comparison in a few lines and tables."""
    titles = (compared(diff), "before", "after", "change")
    causes = tuple((item.change, item.text, item.where) for item in reasons(diff))
    changes = diff.findings.changes
    lines = tuple((change.state, finding_line(change)) for change in changes)
    tables = (
        (titles, tuple(metric_rows(diff))),
        (("change", "why, biggest first", "where"), causes),
        (("", "finding"), lines),
    )
    return Content(
        title=headline(diff),
        warnings=(),
        facts=(
            *(("Failed", text) for text in failures(broken)),
            *((title, f"{name}; {bound}") for title, name, bound in sides(diff)),
            *(("Caveat", text) for text in caveats(diff)),
        ),
        tables=tuple(
            TextTable(tuple(map(Column, names)), rows) for names, rows in tables if rows
        ),
    )


def headline(diff: Diff) -> str:
    """Return the whole comparison in one line: the step time, and mostly why."""
    sides = {"before": diff.before, "after": diff.after}
    damaged = [name for name, side in sides.items() if side.incomplete]
    if not damaged:
        return _what_changed(diff)
    are = "are" if len(damaged) > 1 else "is"
    return f"of what could be read ({' and '.join(damaged)} {are} incomplete): " + (
        _what_changed(diff)
    )


def _what_changed(diff: Diff) -> str:
    before, after = diff.before.step.ns, diff.after.step.ns
    steps = f"{time(before)} -> {time(after)}"
    if diff.verdict == "no change":
        if before == after and not _named(diff):
            return f"{time(before)}{a_step(diff)}, before and after: no change"
        text = f"{steps}{a_step(diff)} ({percent(after - before, before)})"
        text += ": no significant change"
        differ = max(
            side.step.high_ns - side.step.low_ns for side in (diff.before, diff.after)
        )
        if abs(after - before) <= _VARIES * diff.longest_ns:
            return text
        if abs(after - before) > differ / 2:
            return f"{text}, as the host's time for the same work varies by as much"
        return f"{text}, as steps differ by {time(differ)} among themselves"
    measured = diff.before.step.measured
    basis = "without the profiler" if measured else bound_words.AS_RECORDED
    if diff.verdict == "gpu":
        busy = next(metric for metric in diff.metrics if metric.name == "gpu busy")
        change = busy.change or 0.0
        less = "less" if change < 0 else "more"
        return (
            f"{steps}{a_step(diff)} {basis} ({percent(after - before, before)}),"
            f" unclear without the profiler: the GPU works {time(abs(change))} {less}"
            f" ({percent(change, busy.before or 0)}){_mostly(diff, change)}"
        )
    change = after - before
    text = (
        f"{steps}{a_step(diff)} ({percent(change, before)}),"
        f" {time(abs(change))} {diff.verdict} {basis}"
    )
    return text + _mostly(diff, change)


def _mostly(diff: Diff, change: float) -> str:
    """Return the biggest cause that goes the same way."""
    same_way = [
        cause for cause in diff.causes if cause.ns * change > 0 and cause.sure_ns
    ]
    if not same_way:
        return ""
    cause = max(same_way, key=lambda one: abs(one.sure_ns))
    return f": {signed(cause.ns)} {_in_short(cause, diff)}"


def _in_short(cause: Cause, diff: Diff) -> str:
    """Return a cause and its place, for a line that has to stand alone."""
    used = cause.mostly.place
    source = written_place(used.file, used.line, used.function)
    place = source or printable(used.module or "")
    placed = place and cause.kind not in (*ALL_OVER, "compiled")
    return cause_text(cause, diff) + (f", at {place}" if placed else "")


def percent(change: float, before: float) -> str:
    """Return a change as a share of before; how many times as much, if very many."""
    if not before:
        return "from nothing" if change else "0%"
    percent = 100 * change / before
    if percent >= _TIMES_OVER:
        return f"×{1 + change / before:,.0f}"
    return f"{percent:+.1f}%" if abs(percent) < 10 else f"{percent:+.0f}%"  # noqa: PLR2004 - digits


def metric_rows(diff: Diff) -> list[tuple[str, str, str, str]]:
    """Return the numbers of a step: a title, before, after, and the change."""
    rows = [metric_row(metric, _title(metric, diff)) for metric in diff.metrics]
    both = [spread(side.step) for side in (diff.before, diff.after)]
    if diff.stepped and any(both):
        rows.insert(1, ("", both[0], both[1], ""))
    return rows


def metric_row(metric: Metric, title: str = "") -> tuple[str, str, str, str]:
    """Return one number: its title, before, after, and the change."""
    return (title or _TITLES[metric.name], *_values(metric), _change(metric))


def _title(metric: Metric, diff: Diff) -> str:
    return _whole(diff) if metric.name == "step" else _TITLES[metric.name]


def _whole(diff: Diff) -> str:
    """Return the compared unit: a step, or the whole trace."""
    return "step" if diff.stepped else "whole trace"


def _values(metric: Metric) -> tuple[str, str]:
    return _value(metric, metric.before), _value(metric, metric.after)


def _value(metric: Metric, value: float | None) -> str:
    if value is None:
        return "unknown"
    if metric.name in _TIMES:
        return time(value)
    if metric.name == "memory":
        return size(value)
    if metric.name == "slowdown":
        return f"{value:.2f}"
    return average(value)


def _change(metric: Metric) -> str:
    change = metric.change
    if change is None or metric.before is None:
        return ""
    text = _value(metric, change)
    if text == _value(metric, 0.0):
        return "="
    sign = "+" if change > 0 else ""
    return f"{sign}{text} ({percent(change, metric.before)})"


def spread(step: Step) -> str:
    """Return the variation among the steps, as recorded."""
    if step.measured:
        return ""
    if step.count == 1:
        return "one step"
    if step.low_ns == step.high_ns:
        return f"{step.count} steps"
    return f"{time(step.low_ns)} to {time(step.high_ns)}"


def sides(diff: Diff) -> list[tuple[str, str, str]]:
    """Return for before and after: which it is, its name, and what bounds its step."""
    return [
        (title, printable(side.name), bound_words.sentence(side.bound))
        for title, side in (("before", diff.before), ("after", diff.after))
    ]


def compared(diff: Diff) -> str:
    """Return the basis of the numbers, and the source of their times."""
    measured = diff.before.step.measured
    source = bound_words.MEASURED if measured else bound_words.AS_RECORDED
    return f"a step {source}" if diff.stepped else f"the trace {source}"


def reasons(diff: Diff) -> list[Reason]:
    """Return the causes that are worth naming, and the rest as one."""
    # The biggest first; what the profiler may have caused counts half, and residuals
    # are after all others.
    named = sorted(_named(diff), key=_rank)
    sentences = [reason(cause, diff) for cause in named]
    rest = [cause for cause in diff.causes if cause not in named and cause.ns]
    if rest and sentences:
        left = sum(cause.ns for cause in rest)
        text = counted(len(rest), "smaller change")
        sentences.append(Reason(left, text, ""))
    return sentences


def _rank(cause: Cause) -> tuple[bool, float]:
    size = abs(cause.ns) / (2 if _is_doubtful(cause) else 1)
    return cause.kind in _RESIDUALS, -size


def _is_doubtful(cause: Cause) -> bool:
    return bool(cause.ns) and abs(cause.sure_ns) < _NOT_SURE * abs(cause.ns)


def _named(diff: Diff) -> list[Cause]:
    least = _WORTH_NAMING * diff.longest_ns
    varies = _VARIES * diff.longest_ns
    if diff.verdict != "no change":
        varies = min(varies, max(least, _OF_CHANGE * abs(diff.change_ns)))
    return [
        cause
        for cause in diff.causes
        if abs(cause.ns) >= (varies if cause.kind in ALL_OVER else least)
        and (diff.verdict != "no change" or cause.kind not in ALL_OVER)
    ][:_MOST_CAUSES]


def reason(cause: Cause, diff: Diff) -> Reason:
    """Return one cause in words."""
    text = cause_text(cause, diff)
    if _is_doubtful(cause):
        text += ", which the profiler may have caused"
    details = cause_details(cause)
    return Reason(cause.ns, text, "" if details else cause_where(cause), details)


def only(calls: Sequence[tuple[str, float]]) -> str:
    """Return the ops that one side alone has, and how often."""
    return listed(
        [f"{op_name(name)} ×{number(count)}" for name, count in calls], _MOST_CALLS
    )


def finding_line(change: FindingChange) -> str:
    """Return the change of one finding."""
    finding = change.finding
    cost = _finding_cost(change)
    parts = [f"{finding.code} {printable(finding.message)}", cost]
    parts += [where(finding.place)]
    return "; ".join(filter(None, parts))


def _finding_cost(change: FindingChange) -> str:
    costs = []
    sides = zip((change.before, change.after), change.stepped, strict=True)
    for finding, stepped in sides:
        if finding is None:
            continue
        if finding.cost_bytes:
            costs.append(size(finding.cost_bytes))
        elif finding.saves_ns:
            costs.append(time(finding.saves_ns) + ("/step" if stepped else ""))
    return " -> ".join(dict.fromkeys(costs))


def findings_verdict(changes: FindingChanges) -> str:
    """Return in one line how many findings are new, worse, better, gone, the same."""
    states = [change.state for change in changes.changes]
    counts = [
        f"{states.count(state)} {state}" for state in dict.fromkeys(states) if state
    ]
    if changes.same:
        counts.append(f"{changes.same} as before")
    return ", ".join(counts) or "none before, none after"


def caveats(diff: Diff | JobDiff) -> list[str]:
    """Return the caveats of the comparison."""
    texts = [printable(caveat) for caveat in diff.caveats]
    if diff.findings.one_sided:
        codes = ", ".join(diff.findings.one_sided)
        texts.append(f"findings of {codes}: these rules did not run on both sides")
    return texts


def failures(broken: Sequence[Broken]) -> list[str]:
    """Return the limits that do not hold, and by how much."""
    lines = []
    for item in broken:
        if item.metric is None:
            text = counted(item.findings, "new finding")
        else:
            values = " -> ".join(_values(item.metric))
            text = f"{_TITLES[item.metric.name]} {values}, {_change(item.metric)}"
        lines.append(f"FAILED {item.limit.text}: {text}")
    return lines
