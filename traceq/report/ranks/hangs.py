"""A job's dumps of the flight recorder, as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from msgspec import to_builtins
from rich.text import Text

from traceq import __version__
from traceq.common import units
from traceq.common.safe_text import plain_json, printable
from traceq.common.words import at_line, counted, listed
from traceq.ranks.hangs import last_calls, left_behind
from traceq.report.base.columns import Column
from traceq.report.base.content import Content, TextTable
from traceq.report.base.screen import line_width, screen
from traceq.report.base.text import rendered, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.ranks.dumps import DumpJob
    from traceq.ranks.hangs import Call, Problem

VERSION = 1
_LISTED = 8
_ROWS = 32


def verdict(job: DumpJob, problems: Sequence[Problem]) -> str:
    """Return the one sentence on a job."""
    if problems:
        return sentence(problems[0])
    ranks = counted(len(job.ranks), "rank")
    if job.unread:
        return (
            f"Unknown whether the job hangs: all calls in the dumps of {ranks} have"
            f" ended, and {counted(job.unread, 'dump')} cannot be read."
        )
    if behind := left_behind(job):
        return printable(_behind(behind))
    return (
        f"No rank waits and none is late: all recorded calls of {ranks} have ended. If"
        " the job hangs, it is outside of them."
    )


def _behind(calls: Sequence[Call]) -> str:
    *behind, ahead = calls
    ranks = [call.rank for call in behind]
    ends = "its calls end" if len(ranks) == 1 else "their calls end"
    return (
        f"No rank waits, but {_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'}"
        f" behind: {ends} with {_named(behind[0])}, and others have reached"
        f" {_named(ahead)}. The dump is older, or the rank has ended or waits where"
        " nothing is recorded."
    )


def sentence(problem: Problem) -> str:
    """Return what is wrong, where, in one sentence."""
    words = {
        "different-collective": _different,
        "different-size": _different,
        "different-dtype": _different,
        "not-joined": _not_joined,
        "circle": _circle,
        "not-completed": _not_completed,
        "late": _late,
    }
    return printable(words[problem.kind](problem)) + "."


def _not_joined(problem: Problem) -> str:
    call, *last = problem.calls
    waiting = _ranks(problem.waiting)
    waits = "waits" if len(problem.waiting) == 1 else "wait"
    if problem.how == "unknown-members":
        return (
            f"{waiting.capitalize()} {waits} in {_named(call)}; who has not joined is"
            " unknown, as the dumps do not say which ranks the group has"
        )
    who = _ranks(problem.ranks).capitalize()
    one = len(problem.ranks) == 1
    if problem.how == "no-dump":
        return (
            f"{waiting.capitalize()} {waits} in {_named(call)} for {who.lower()}, of"
            " which there is no dump"
        )
    text = (
        f"{who} {'has' if one else 'have'} not joined {_named(call)}, in which"
        f" {waiting} {waits}"
    )
    if not last:
        return f"{text}; {'it has' if one else 'they have'} called no collective"
    names = {_named(each): each.rank for each in last}
    if len(names) == 1:
        return f"{text}; {'its' if one else 'their'} last call was {_named(last[0])}"
    each = [f"{name} on rank {rank}" for name, rank in names.items()]
    return f"{text}; their last calls were {', '.join(each[:_LISTED])}"


def _different(problem: Problem) -> str:
    *odd, usual = problem.calls[: _sides(problem)]
    what = {
        "different-collective": "is not the same on all ranks",
        "different-size": "has different sizes",
        "different-dtype": "has different dtypes",
    }[problem.kind]
    name = "Collective" if problem.kind == "different-collective" else usual.op
    sides = [
        *(
            _side(call, problem.ranks if len(odd) == 1 else (call.rank,))
            for call in odd
        ),
        _side(usual, problem.waiting),
    ]
    text = f"{name} {usual.seq} of {usual.group} {what}: {', '.join(sides)}"
    more = problem.calls[_sides(problem) :]
    who = _ranks(problem.ranks)
    if problem.how == "order":
        return f"{text}; the ranks call the same collectives in another order"
    if problem.how == "left-out" and more:
        return f"{text}; {who} left out {more[0].op}{_at(more[0])}"
    if problem.how == "added" and more:
        return f"{text}; only {who} called {more[0].op}{_at(more[0])}"
    return text


def _sides(problem: Problem) -> int:
    """Return the number of calls that differ; what explains them follows."""
    return len(problem.calls) - (problem.how in ("left-out", "added"))


def _side(call: Call, ranks: Sequence[int]) -> str:
    what = " ".join(filter(None, (call.op, call.shape, call.dtype)))
    calls = "calls" if len(ranks) == 1 else "call"
    return f"{_ranks(ranks)} {calls} {what}{_at(call)}"


def _circle(problem: Problem) -> str:
    parts = [f"rank {call.rank} in {_named(call)}" for call in problem.calls]
    return f"{_ranks(problem.ranks).capitalize()} wait for each other: " + ", ".join(
        parts[:_LISTED]
    )


def _not_completed(problem: Problem) -> str:
    call = problem.calls[0]
    return (
        f"All ranks have joined {_named(call)}, and it has not ended on"
        f" {_ranks(problem.ranks)}: the dumps are from amid the transfer, the ranks"
        " differ in what dumps lack, as the root, or the link or the library failed"
    )


def _late(problem: Problem) -> str:
    call = problem.calls[0]
    return (
        f"No hang, but {_ranks(problem.ranks)} is late, most at {call.op} of"
        f" {call.group}{_at(call)}: by {units.time(problem.late_ns)} at the median, in"
        f" all {units.share(problem.share, 1)} of the time from first to last call"
    )


def _named(call: Call) -> str:
    return f"{call.op} {call.seq} of {call.group}{_at(call)}"


def _at(call: Call) -> str:
    where = _place(call)
    return f" at {where}" if where else ""


def _place(call: Call) -> str:
    if not call.file:
        return ""
    return " ".join(filter(None, (at_line(call.file, call.line), call.function)))


def _ranks(numbers: Sequence[int]) -> str:
    names = listed([str(number) for number in numbers], _LISTED)
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {names}"


def render(
    job: DumpJob, problems: Sequence[Problem], *, width: int | None, color: bool
) -> str:
    """Return the text of a screen."""
    wide = line_width(width)
    parts: list[Text | str] = [
        Text(line, style="bold") for line in wrapped(verdict(job, problems), wide)
    ]
    for problem in problems[1:]:
        parts += ["", *wrapped(sentence(problem), wide, first="also: ", rest="      ")]
    parts += ["", *screen(_content(job), wide)]  # type: ignore[list-item]  # of rich
    for notice in job.notices:
        lines = wrapped(printable(notice), wide, first="note: ", rest="      ")
        parts += ["", *map(Text, lines)]
    return rendered(parts, width=wide, color=color).rstrip("\n") + "\n"


def render_json(job: DumpJob, problems: Sequence[Problem], failing: int) -> str:
    """Return one object; ``version`` is that of its fields."""
    data = {
        "version": VERSION,
        "traceq": __version__,
        "verdict": verdict(job, problems),
        "failing": failing,
        "problems": [
            to_builtins(problem) | {"message": sentence(problem)}
            for problem in problems
        ],
        "last_calls": [to_builtins(call) for call in last_calls(job)],
        "calls": job.calls.height,
        "notes": list(job.notices),
    }
    text = orjson.dumps(data, option=orjson.OPT_INDENT_2).decode()
    return plain_json(text) + "\n"


def _content(job: DumpJob) -> Content:
    rows = [
        (
            str(call.rank),
            "ended" if call.done else "waits",
            printable(f"{call.op} {call.seq}"),
            printable(call.group),
            printable(call.shape or ""),
            printable(_place(call)),
        )
        for call in last_calls(job)[:_ROWS]
    ]
    columns = (
        Column("rank"),
        Column("state"),
        Column("last call"),
        Column("group"),
        Column("shape"),
        Column("at"),
    )
    ranks = counted(len(job.ranks), "rank")
    return Content(
        title=f"{ranks}, {counted(job.calls.height, 'call')}",
        warnings=(),
        facts=(),
        tables=(TextTable(columns, tuple(rows)),),
    )
