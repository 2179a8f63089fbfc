"""Words on runs over time: numbers, jumps, causes and findings."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from traceq.common import units
from traceq.common.safe_text import printable
from traceq.common.units import NS_PER_S
from traceq.common.words import counted, listed
from traceq.report.base.columns import Column
from traceq.report.base.content import TextTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceq.history.bisection import Bisection
    from traceq.history.changes import Amount, Cause, Difference, FindingChange
    from traceq.history.digest import Digest
    from traceq.history.jumps import Name, Shift
    from traceq.history.series import Compared, Explained, ExplainedJump, Series
    from traceq.history.store import Run

SOURCES = {
    "measured": "step measured without the profiler",
    "estimated": "step estimated without the profiler",
    "recorded": "step as recorded",
}
TITLES: dict[Name, str] = {
    "step": "step",
    "memory": "peak memory",
    "gpu busy": "GPU busy",
    "idle": "GPU idle",
    "reserved": "reserved memory",
    "syncs": "syncs",
    "kernels": "kernels",
}
MORE, LESS, PERHAPS = "▲", "▼", "?"
_SIZES = ("memory", "reserved")
_COUNTS = ("syncs", "kernels")
_COMMIT = 10
_MOST_CAUSES = 3
_MOST_FINDINGS = 10


def value(name: Name, amount: float) -> str:
    """Return a number with its unit."""
    if name in _SIZES:
        return units.size(amount)
    return units.average(amount) if name in _COUNTS else units.time(amount)


def change(name: Name, before: float, after: float) -> str:
    """Return a number before and after, and by how much it changed."""
    pair = f"{TITLES[name]} {value(name, before)} → {value(name, after)}"
    if name in _COUNTS or not before:
        return pair
    return f"{pair} ({percent(before, after)})"


def percent(before: float, after: float) -> str:
    """Return a change in percent, with its sign."""
    share = 100 * (after - before) / before if before else 0.0
    return f"{share:+.1f}%"


def commit(run: Run) -> str:
    """Return the commit of a run, shortened."""
    return printable(run.commit[:_COMMIT]) or "-"


def date(run: Run) -> str:
    """Return the day of a run."""
    try:
        moment = datetime.fromtimestamp(run.at_ns / NS_PER_S, tz=timezone.utc)
    except (ValueError, OverflowError, OSError):
        return "-"
    return moment.date().isoformat()


def run_name(run: Run) -> str:
    """Return a run by its number, commit and path."""
    of = f" of {commit(run)}" if run.commit else ""
    return f"#{run.id}{of} ({printable(run.name)})"


def run_line(digest: Digest) -> str:
    """Return a digest in a line: the run, its commit, its step, its memory."""
    step, memory = digest.step, digest.memory
    parts = [
        digest.series,
        f"commit {digest.commit[:_COMMIT]}" if digest.commit else "no commit",
        f"step {units.time(step.ns)}" if step else "",
        f"peak {units.size(memory.allocated)}" if memory else "",
        counted(len(digest.findings), "finding"),
    ]
    return printable(f"{digest.name} ({', '.join(filter(None, parts))})")


def mark(jump: ExplainedJump) -> str:
    """Return the mark of a jump: of its most important number, doubtful if single."""
    up = jump.jump.shifts[0].change > 0
    return (MORE if up else LESS) + ("" if jump.jump.confirmed else PERHAPS)


def series_title(series: Series) -> str:
    """Return the name of a series, and where its step time is from."""
    source = SOURCES.get(series.runs[0].step_from, "no step time")
    runs = counted(len(series.runs), "run")
    return f"{printable(series.name)}: {runs}, {source}"


def table(series: Series) -> TextTable:
    """Return a row for each run; its jump is the last cell."""
    jumps = {jump.jump.at: jump for jump in series.jumps}
    columns = (
        Column("run", number=True),
        Column("commit"),
        Column("date", spare=True),
        Column("step ms", number=True),
        Column("±", number=True),
        Column("busy", number=True),
        Column("memory", number=True),
        Column("change", weight=4),
    )
    rows = tuple(
        (*_row(run), _short_jump(jumps[at]) if at in jumps else "")
        for at, run in enumerate(series.runs)
    )
    return TextTable(columns, rows)


def _row(run: Run) -> tuple[str, ...]:
    step, busy = run.step_ns, run.busy_ns
    return (
        str(run.id),
        commit(run),
        date(run),
        units.milliseconds(step) if step is not None else "-",
        units.milliseconds(run.error_ns) if run.error_ns else "-",
        units.share(busy, step) if busy is not None and step else "-",
        units.size(run.allocated) if run.allocated is not None else "-",
    )


def _short_jump(explained_jump: ExplainedJump) -> str:
    first = explained_jump.jump.shifts[0]
    text = f"{mark(explained_jump)} {change(first.number, first.before, first.after)}"
    why = main_cause(explained_jump.difference, explained_jump.jump.shifts)
    return f"{text}: {why}" if why else text


def jump_lines(series: Series) -> Iterator[tuple[str, list[str]]]:
    """Yield the jumps: the run with the numbers that changed, and the causes."""
    for jump in series.jumps:
        run = series.runs[jump.jump.at]
        numbers = jump_numbers(jump)
        doubt = "" if jump.jump.confirmed else "; too few runs so far to be sure"
        yield (
            f"{mark(jump)} #{run.id} {commit(run)}: {numbers}{doubt}",
            reasons(jump.difference, jump.jump.shifts),
        )


def jump_numbers(explained_jump: ExplainedJump) -> str:
    """Return the numbers that changed, before and after."""
    return listed(
        [change(s.number, s.before, s.after) for s in explained_jump.jump.shifts]
    )


def reasons(difference: Difference, shifts: Sequence[Shift] = ()) -> list[str]:
    """Return causes, findings and versions that differ, as sentences."""
    causes = _relevant(difference, shifts)
    lines = [cause_text(cause) for cause in causes[:_MOST_CAUSES]]
    if (more := len(causes) - _MOST_CAUSES) > 0:
        rest = sum(cause.amount.change for cause in causes[_MOST_CAUSES:])
        kind: Name = (
            "memory" if all(cause.kind == "memory" for cause in causes) else "step"
        )
        amount = _signed(kind, rest)
        lines.append(f"{counted(more, 'smaller cause')} of {amount} together")
    lines += [finding_text(finding) for finding in difference.findings[:_MOST_FINDINGS]]
    if (more := len(difference.findings) - _MOST_FINDINGS) > 0:
        lines.append(f"{counted(more, 'other finding')} that changed")
    lines += [
        printable(f"{name} {before} → {after}")
        for name, before, after in difference.versions
    ]
    return lines or ["no cause in the digests: the same work, in another time"]


def main_cause(difference: Difference, shifts: Sequence[Shift] = ()) -> str:
    """Return the largest cause in one clause; empty if none is known."""
    causes = _relevant(difference, shifts)
    if causes:
        return cause_text(causes[0])
    if difference.findings:
        return finding_text(difference.findings[0])
    return ""


def main_kind(difference: Difference, shifts: Sequence[Shift] = ()) -> str:
    """Return the kind of the largest cause; empty if none is known."""
    causes = _relevant(difference, shifts)
    return causes[0].kind if causes else ""


def _relevant(difference: Difference, shifts: Sequence[Shift]) -> list[Cause]:
    """Return the causes of what shifted: those of memory only if that did, too.

    A cause that makes longer comes first where the time grew.
    """
    numbers = {shift.number for shift in shifts}
    memory = {"memory", "reserved"}
    causes = list(difference.causes)
    if numbers and not numbers & memory:
        causes = [cause for cause in causes if cause.kind != "memory"]
    if numbers and numbers <= memory:
        causes = [cause for cause in causes if cause.kind == "memory"]
    main = shifts[0].change if shifts else 0.0
    if main:
        causes.sort(key=lambda cause: cause.amount.change * main < 0)
    if "syncs" in numbers:
        causes.sort(key=lambda cause: cause.kind != "syncs")
    return causes


def _signed(name: Name, amount: float) -> str:
    sign = "+" if amount >= 0 else "-"
    return f"{sign}{value(name, abs(amount))}"


def cause_text(cause: Cause) -> str:
    """Return a cause as a clause."""
    amount = cause.amount
    place = _place(cause)
    if cause.kind == "memory":
        pair = f"{units.size(amount.before)} → {units.size(amount.after)}"
        return f"{printable(cause.op)}{place} at the peak {pair}"
    if cause.kind == "host":
        more = _signed("step", amount.change)
        return f"host time before launches of the same work {more}"
    pair = f"{units.time(amount.before)} → {units.time(amount.after)}"
    if cause.kind == "account":
        return f"{printable(cause.op)} {pair}"
    op = printable(cause.op)
    if cause.kind == "kernel time":
        word = "slower" if amount.change > 0 else "faster"
        return f"same {_kernels(cause)} {word}: {op}{place} {pair}"
    if cause.kind == "other kernel":
        old, new = map(printable, cause.kernels)
        return f"kernel {new or '-'} instead of {old or '-'}: {op}{place} {pair}"
    kind = _kernels(cause) if cause.kind == "kernels" else cause.kind
    return f"{_count(cause.count, kind)}: {op}{place} {_signed('step', amount.change)}"


def _kernels(cause: Cause) -> str:
    """Return what has the time: without a GPU there are no kernels."""
    return "kernels" if any(cause.kernels) else "calls"


def _count(count: Amount | None, kind: str) -> str:
    """Return how many more or fewer there are."""
    if count is None:
        return kind
    word = "more" if count.change > 0 else "fewer"
    singular = {"copies": "copy"}.get(kind, kind.removesuffix("s"))
    number = abs(count.change)
    noun = singular if round(number, 1) == 1 else kind
    return f"{units.average(number)} {word} {noun}"


def _place(cause: Cause) -> str:
    parts = [f" in {printable(name)}" for name in (cause.module,) if name]
    phase = " backward" if cause.phase == "backward" else ""
    where = f" ({printable(cause.where)})" if cause.where else ""
    return phase + "".join(parts) + where


def finding_text(finding_change: FindingChange) -> str:
    """Return the change of a finding as a clause."""
    finding = finding_change.finding
    costs = [
        f"{units.time(amount.before)} → {units.time(amount.after)}"
        if name == "time"
        else f"{units.size(amount.before)} → {units.size(amount.after)}"
        for name, amount in (
            ("time", finding_change.saves_ns),
            ("size", finding_change.cost_bytes),
        )
        if amount.before or amount.after
    ]
    place = f" in {printable(finding.where)}" if finding.where else ""
    cost = f", {' and '.join(costs)}" if costs else ""
    name = printable(f"{finding.code} {finding.name}")
    return f"{finding_change.state} finding {name}{place}{cost}"


# -- Two runs, and a new run -----------------------------------------------------------


def sides(explained: Explained) -> tuple[str, str]:
    """Return the names of both sides."""
    return _side(explained.before), _side(explained.after)


def _side(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return run_name(runs[0])
    return f"{commit(runs[0])}, median of {counted(len(runs), 'run')}"


def number_table(
    difference: Difference, titles: tuple[str, str] = ("before", "after")
) -> TextTable:
    """Return the numbers of both sides."""
    columns = (
        Column("per step"),
        *(Column(title, number=True) for title in (*titles, "change")),
    )
    rows = tuple(
        (
            TITLES[name],
            value(name, amount.before),
            value(name, amount.after),
            percent(amount.before, amount.after) if amount.before else "-",
        )
        for name, amount in difference.numbers
    )
    return TextTable(columns, rows)


def headline(compared: Compared) -> str:
    """Return what a new run changes, in a sentence."""
    count = len(compared.earlier)
    runs = "run" if count == 1 else f"{count} runs"
    if not compared.earlier:
        return (
            "nothing to compare with: the history has no earlier run of this series,"
            " GPU and source of the step time"
        )
    if not compared.shifts:
        few = "" if len(compared.earlier) > 2 else ", too few to know the noise"  # noqa: PLR2004
        return f"no change beyond the noise of the last {runs}{few}"
    changed = [
        change(shift.number, shift.before, shift.after) for shift in compared.shifts
    ]
    return f"beyond the noise of the last {runs}: {'; '.join(changed)}"


def compared_table(compared: Compared) -> TextTable:
    """Return the numbers of a new run beside the median of the last runs."""
    shifts = {shift.number for shift in compared.shifts}
    columns = (
        Column("per step"),
        *(Column(title, number=True) for title in ("last runs", "this run", "change")),
        Column("beyond noise"),
    )
    difference = compared.difference
    rows = tuple(
        (
            TITLES[name],
            value(name, amount.before),
            value(name, amount.after),
            percent(amount.before, amount.after) if amount.before else "-",
            "yes" if name in shifts else "no",
        )
        for name, amount in (difference.numbers if difference else ())
    )
    return TextTable(columns, rows)


# -- Bisection -------------------------------------------------------------------------


def bisection_lines(bisection: Bisection) -> list[str]:
    """Return what is known, and what to measure next."""
    good, bad = bisection.good, bisection.bad
    name = bisection.number
    levels = (
        f"{TITLES[name]}: {value(name, good.value)} in {good.commit[:12]},"
        f" {value(name, bad.value)} in {bad.commit[:12]}"
    )
    if not bisection.next:
        return [levels, f"first bad commit: {bad.commit}"]
    again = ", whose runs are too near the middle to tell" if bisection.again else ""
    left = counted(len(bisection.between), "commit")
    return [
        levels,
        f"measure next: {bisection.next}{again}",
        f"{left} between them, about {counted(bisection.runs_left, 'run')} to go",
    ]
