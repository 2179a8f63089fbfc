"""A comparison of two jobs of many ranks, in every format that there is for it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson

from traceq import __version__
from traceq.common.safe_text import as_unicode, plain_json, printable
from traceq.common.units import share, time
from traceq.common.words import listed
from traceq.report import bound as bound_words
from traceq.report.base import markdown as as_markdown
from traceq.report.base.columns import Column
from traceq.report.base.content import TextTable
from traceq.report.base.markdown import escaped
from traceq.report.base.screen import line_width, table_lines
from traceq.report.base.text import bold, styled, wrapped
from traceq.report.diff import content as words
from traceq.report.diff.github import annotation
from traceq.report.diff.json import KEYS, VERSION, change_data
from traceq.report.lint.github import command
from traceq.report.ranks import content as ranks_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceq.differ.jobs import (
        JobDiff,
        JobSide,
        KindChange,
        Meetings,
        StragglerChange,
    )
    from traceq.differ.limits import Broken
    from traceq.ranks.analysis import Analysis, Straggler

_STATE = 8
_COLORS = {"slower": "red", "faster": "green"}


def headline(diff: JobDiff) -> str:
    """Return the whole comparison in one line: the step, and who holds it up."""
    return f"{_step(diff)}; {_who(diff)}"


def _step(diff: JobDiff) -> str:
    before, after = diff.before.step, diff.after.step
    if before is None or after is None:
        return "how a step changed is not known, as not both jobs have steps"
    if before.ns == after.ns:
        return f"{time(before.ns)} a step, before and after: no change"
    steps = f"{time(before.ns)} -> {time(after.ns)}"
    change = after.ns - before.ns
    by = words.percent(change, before.ns)
    if diff.verdict == "no change":
        return f"{steps} a step ({by}): no significant change"
    basis = "without the profiler" if before.measured else bound_words.AS_RECORDED
    return f"{steps} a step ({by}), {time(abs(change))} {diff.verdict} {basis}"


def _who(diff: JobDiff) -> str:
    """Return the ranks that held the others up most before, and after."""
    sides = [side.analysis for side in (diff.before, diff.after)]
    before, after = (_worst(side) for side in sides)
    if before is None and after is None:
        return "no straggler before or after"
    if after is None:
        return f"{before} held the others up before, and none does after"
    now = sides[1].stragglers[0]
    hold, do = ("holds", "does") if len(now.ranks) == 1 else ("hold", "do")
    if before is None:
        when = f"{hold} the others up after, and none did before"
    elif before == after:
        when = f"{hold} the others up before and after"
    else:
        when = f"{do} after"
    first = f"{before} held the others up before, " if when.startswith(do) else ""
    return f"{first}{after} {when}: {ranks_words.why(sides[1], now)}"


def _worst(analysis: Analysis) -> str | None:
    if not analysis.stragglers:
        return None
    return ranks_words.named(analysis, analysis.stragglers[0].ranks).lower()


def sides(diff: JobDiff) -> list[tuple[str, str, str]]:
    """Return each side's title, name and verdict."""
    return [
        (title, printable(side.name), ranks_words.verdict(side.analysis))
        for title, side in (("before", diff.before), ("after", diff.after))
    ]


def tables(diff: JobDiff) -> Iterator[TextTable]:
    """Yield the metrics, and the collectives of a rank."""
    yield TextTable(
        (
            Column(f"a step of a rank, {bound_words.AS_RECORDED}"),
            *(Column(title, number=True) for title in ("before", "after", "change")),
        ),
        tuple(_metrics(diff)),
    )
    if diff.kinds:
        titles = ("before", "waiting", "after", "waiting")
        yield TextTable(
            (
                Column("collectives of a rank"),
                *(Column(title, number=True) for title in titles),
                Column("change of waiting", number=True),
            ),
            tuple(map(_kind, diff.kinds)),
        )


def _metrics(diff: JobDiff) -> Iterator[tuple[str, str, str, str]]:
    steps = [side.step for side in (diff.before, diff.after)]
    ranges = [words.spread(step) if step else "" for step in steps]
    measured = any(step and step.measured for step in steps)
    for metric in diff.metrics:
        if metric.name != "step":
            yield words.metric_row(metric)
            continue
        yield words.metric_row(metric, "step without the profiler" * measured)
        if any(ranges):
            yield "", ranges[0], ranges[1], ""


def _kind(kind: KindChange) -> tuple[str, ...]:
    cells: list[str] = []
    for side in (kind.before, kind.after):
        cells += _both(side) if side else ("-", "-")
    waits = [side.waiting_ns if side else 0.0 for side in (kind.before, kind.after)]
    change = waits[1] - waits[0]
    amount = time(change) if abs(change) >= 1 else "="
    return printable(kind.kind), *cells, f"+{amount}" if change >= 1 else amount


def _both(side: Meetings) -> tuple[str, str]:
    return time(side.ns), share(side.waiting_ns, side.ns)


def straggler(straggler_change: StragglerChange, diff: JobDiff) -> str:
    """Return the changes of ranks that hold, or held, the others up."""
    ranks = "rank" if len(straggler_change.numbers) == 1 else "ranks"
    who = f"{ranks} {listed([str(number) for number in straggler_change.numbers])}"
    sides = [
        (was, side.analysis)
        for was, side in (
            (straggler_change.before, diff.before),
            (straggler_change.after, diff.after),
        )
        if was
    ]
    costs = [time(_a_step(was, side)) for was, side in sides]
    causes = [ranks_words.why(side, was) for was, side in sides]
    if straggler_change.state != "changed":
        causes = causes[-1:]
    return printable(f"{who}: {' -> '.join(costs)}/step; {' -> '.join(causes)}")


def _a_step(one: Straggler, analysis: Analysis) -> float:
    return one.saved_ns / analysis.steps


def full(
    diff: JobDiff, broken: Sequence[Broken], *, width: int | None, color: bool
) -> str:
    """Return the comparison for a terminal."""
    return "\n".join(_full(diff, broken, line_width(width), color=color)) + "\n"


def _full(
    diff: JobDiff, broken: Sequence[Broken], width: int, *, color: bool
) -> Iterator[str]:
    for failure in words.failures(broken):
        yield from (bold(line, color=color) for line in wrapped(failure, width))
    style = f"bold {_COLORS.get(diff.verdict, '')}"
    for line in wrapped(headline(diff), width):
        yield styled(line, style, color=color)
    for title, name, verdict in sides(diff):
        yield from wrapped(name, width, first=f"{title:<8}", rest=" " * 8)
        yield from wrapped(verdict, width, first=" " * 8, rest=" " * 8)
    for table in tables(diff):
        yield ""
        head, *lines = (line.plain for line in table_lines(table, width))
        yield bold(head, color=color)
        yield from lines
    if diff.stragglers:
        yield ""
        yield bold("Who holds the others up:", color=color)
    for straggler_change in diff.stragglers:
        start = f"  {straggler_change.state:<{_STATE}}"
        text = straggler(straggler_change, diff)
        yield from wrapped(text, width, first=start, rest=" " * (_STATE + 2))
    yield ""
    yield bold("Findings: ", color=color) + words.findings_verdict(diff.findings)
    for change in diff.findings.changes:
        start = f"  {change.state:<{_STATE}}"
        text = words.finding_line(change)
        yield from wrapped(text, width, first=start, rest=" " * (_STATE + 2))
    if caveats := words.caveats(diff):
        yield ""
        yield bold("Caveats:", color=color)
        for caveat in caveats:
            yield from wrapped(caveat, width, first="- ", rest="  ")


def concise(diff: JobDiff, broken: Sequence[Broken]) -> str:
    """Return one line a fact."""
    lines = [*words.failures(broken), headline(diff)]
    lines += [
        ": ".join((row[0], f"{row[1]} -> {row[2]}", row[3]))
        for row in map(words.metric_row, diff.metrics)
    ]
    lines += [
        f"straggler: {straggler_change.state}: {straggler(straggler_change, diff)}"
        for straggler_change in diff.stragglers
    ]
    lines += [
        f"{change.state}: {words.finding_line(change)}"
        for change in diff.findings.changes
    ]
    lines += [f"caveat: {caveat}" for caveat in words.caveats(diff)]
    lines.append(_last(diff))
    return "\n".join(lines) + "\n"


def _last(diff: JobDiff) -> str:
    names = f"{printable(diff.before.name)} -> {printable(diff.after.name)}"
    return f"{names}: findings: {words.findings_verdict(diff.findings)}"


def markdown(diff: JobDiff, broken: Sequence[Broken]) -> str:
    """Return a section for a pull request."""
    return "\n".join(_markdown(diff, broken)) + "\n"


def _markdown(diff: JobDiff, broken: Sequence[Broken]) -> Iterator[str]:
    for failure in words.failures(broken):
        yield f"**{escaped(failure)}**\n"
    yield f"### {escaped(headline(diff))}\n"
    for title, name, verdict in sides(diff):
        yield f"- {title} {escaped(name)}: {escaped(verdict)}"
    for table in tables(diff):
        yield ""
        yield as_markdown.table(table).rstrip()
    if diff.stragglers:
        yield "\nWho holds the others up:\n"
    for straggler_change in diff.stragglers:
        who = escaped(straggler(straggler_change, diff))
        yield f"- **{straggler_change.state}** {who}"
    yield f"\nFindings: {words.findings_verdict(diff.findings)}"
    if diff.findings.changes:
        yield ""
    for change in diff.findings.changes:
        yield f"- **{change.state}** {escaped(words.finding_line(change))}"
    if caveats := words.caveats(diff):
        yield "\nCaveats:\n"
        yield from (f"- {escaped(caveat)}" for caveat in caveats)


def github(diff: JobDiff, broken: Sequence[Broken]) -> str:
    """Return commands that become annotations."""
    title = {"title": "traceq diff"}
    lines = [command("error", title, text) for text in words.failures(broken)]
    lines.append(command("notice", title, headline(diff)))
    lines += [annotation(change) for change in diff.findings.changes]
    # A file may be called as a command is, which acts only where a line begins.
    lines.append(f"traceq: {_last(diff)}")
    return "\n".join(lines) + "\n"


def json(diff: JobDiff, broken: Sequence[Broken]) -> str:
    """Return one object; ``version`` says which fields there are."""
    steps = [side.step for side in (diff.before, diff.after)]
    measured = any(step and step.measured for step in steps)
    content = {
        "version": VERSION,
        "traceq": __version__,
        "failed": [
            {"limit": one.limit.text, "reason": text}
            for one, text in zip(broken, words.failures(broken), strict=True)
        ],
        "headline": headline(diff),
        "verdict": diff.verdict,
        "before": _side_data(diff.before),
        "after": _side_data(diff.after),
        "times_from": "measured" if measured else "recorded",
        "metrics": {
            KEYS.get(metric.name, metric.name): {
                "before": metric.before,
                "after": metric.after,
            }
            for metric in diff.metrics
        },
        "collectives": [asdict(kind) for kind in diff.kinds],
        "stragglers": [
            {
                "state": straggler_change.state,
                "ranks": list(straggler_change.numbers),
                "before": _straggler_data(straggler_change.before, diff.before),
                "after": _straggler_data(straggler_change.after, diff.after),
            }
            for straggler_change in diff.stragglers
        ],
        "findings": [change_data(change) for change in diff.findings.changes],
        "findings_as_before": diff.findings.same,
        "rules_run_on_one_side": list(diff.findings.one_sided),
        "caveats": list(diff.caveats),
    }
    return plain_json(orjson.dumps(content, option=orjson.OPT_INDENT_2).decode()) + "\n"


def _side_data(side: JobSide) -> dict[str, Any]:
    job = side.analysis.job
    return {
        "name": as_unicode(side.name),
        "verdict": ranks_words.verdict(side.analysis),
        "ranks": job.ranks["number"].to_list(),
        "devices": job.ranks["device"].unique().sort().to_list(),
        "step": asdict(side.step) if side.step else None,
        "steps": side.analysis.steps,
        "window_ns": job.window_ns,
        "collectives": job.collectives.height,
    }


def _straggler_data(one: Straggler | None, side: JobSide) -> dict[str, Any] | None:
    if one is None:
        return None
    return {
        "saves_ns": _a_step(one, side.analysis),
        "late_ns": one.cause.late_ns / side.analysis.steps,
        "cause": one.cause.cause,
        "explained": one.cause.explained,
        "region": one.cause.region,
        "place": asdict(one.cause.place),
    }
