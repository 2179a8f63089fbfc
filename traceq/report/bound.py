"""Bound of a step as one sentence, one bar and data: the same in all reports."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from traceq.common.safe_text import printable
from traceq.common.units import percents, share, time
from traceq.common.words import counted
from traceq.model.host_work import OPERATORS, UNKNOWN, host_work_name
from traceq.report.base.text import of_function, styled

if TYPE_CHECKING:
    from traceq.model.lint_report import Bound, HostTimeEntry, IdleBreakdown

NO_GPU = "no GPU work in the trace"
AS_RECORDED = "as recorded"
_MOST_ENTRIES = 5
"""Lines of the host's account in a bound's data; `traceq summary --host` has more."""
MEASURED = "measured without the profiler"
_SOURCES = {
    "measured": MEASURED,
    "estimated": "estimated without the profiler",
    "recorded": AS_RECORDED,
}
# The analyses' own words, which a test holds to theirs: of an outcome that was kept
# nothing is analysed, so that nothing of that is imported.
FILL = {
    "computing": "█",
    "moving memory": "▓",
    "communicating": "▒",
    "copying to or from the host": "░",
    "unknown kernels": "▚",
    "between kernels": "╌",
}
# A letter for each thing that the host does, so that a bar reads without colour.
LETTERS = {
    OPERATORS: "o",
    "operators on new shapes": "s",
    "loading kernels": "v",
    "operators slower than usual": "t",
    "launches": "l",
    "Python": "p",
    "Python with its libraries": "P",
    "Python between operators (stacks were not recorded)": "q",
    "module hooks": "h",
    "Python of libraries": "b",
    "module calls": "m",
    "Python of the optimizer": "z",
    "autograd engine": "a",
    "guards and wrappers of compiled code": "g",
    "pauses of few steps": "j",
    "loading data": "d",
    "compiling": "c",
    "capturing CUDA graphs": "r",
    "waiting for the GPU": "w",
    "copies that block": "k",
    "waiting for locks and I/O": "i",
    "the profiler itself": "f",
    "allocating memory": "e",
    "communicating through the host": "n",
    "launching": "l",
    "running operators": "o",
    "running Python": "p",
}
_IDLE = "·"
_OTHERS = "x"
_GLYPHS = FILL | LETTERS
_BAR = 40
_MOST_STEPS = 6
# Causes that take a smaller share of the step are listed together.
_WORTH_NAMING = 0.01
# A line that has more of its kind is all of it.
_WHOLE = 0.995


def source(bound: Bound) -> str:
    """Return the source of a bound's step time."""
    return _SOURCES[bound.step_from]


def sentence(bound: Bound) -> str:
    """Return the bound of a step: the GPU, or the host, with what the GPU waits for.

    It is both where they take about as long, and "likely" where the recording allows
    the other answer too.
    """
    cause = bound.bottleneck
    if cause is None:
        return NO_GPU
    likely = "" if bound.sure else "likely "
    whole = "the step" if bound.stepped else "the trace"
    step = f"{whole} ({time(bound.step_ns)} {source(bound)})"
    if bound.both:
        busy = share(bound.gpu_busy, 1)
        return f"GPU and host bound it both: the GPU is busy {busy} of {step}"
    if bound.by == "gpu":
        busy = share(bound.gpu_busy, 1)
        return f"{likely}GPU-bound: the GPU is busy {busy} of {step}"
    idle = share(bound.gpu_idle, 1)
    return f"{likely}host-bound: the GPU waits {idle} of {step}{_mostly(bound.waits)}"


def short_sentence(bound: Bound) -> str:
    """Return the bound of a step in one clause, without the step's time."""
    if bound.bottleneck is None:
        return NO_GPU
    likely = "" if bound.sure else "likely "
    whole = "the step" if bound.stepped else "the trace"
    if bound.by == "gpu":
        busy = share(bound.gpu_busy, 1)
        return f"{likely}GPU-bound: the GPU is busy {busy} of {whole}"
    text = f"{likely}host-bound: the GPU waits {share(bound.gpu_idle, 1)} of {whole}"
    largest = bound.waits.largest if bound.waits else None
    if bound.waits is None or largest is None:
        return text
    most = "mostly" if largest.ns > bound.waits.idle_ns / 2 else "longest"
    kind = largest.kind.partition(" (")[0]
    return f"{text}, {most} for {host_work_name(kind)}"


def _mostly(waits: IdleBreakdown | None) -> str:
    """Return the host activity that the GPU waits for most, and its largest place."""
    largest = waits.largest if waits else None
    if waits is None or largest is None:
        return ""
    most = "mostly" if largest.ns > waits.idle_ns / 2 else "longest"
    part = f"{share(largest.ns, waits.idle_ns)} of the wait"
    return f", {most} for {entry(largest, part)}"


def entry(largest: HostTimeEntry, part: str = "") -> str:
    """Return a kind of host activity, with its share ``part`` and its largest line."""
    kind, _, note = largest.kind.removesuffix(")").partition(" (")
    if largest.kind == OPERATORS:
        note = counted(round(largest.calls), "op")
    figures = ", ".join(filter(None, (note, part)))
    details = "; ".join(filter(None, (figures, _largest_line(largest))))
    phrase = host_work_name(kind)
    return f"{phrase} ({details})" if details else phrase


def _largest_line(largest: HostTimeEntry) -> str:
    """Return the op or function, and the place, that most of a kind is at."""
    place = of_function(largest.file, largest.line, largest.function)
    # A function is named by its place already.
    name = "" if largest.name == largest.function else printable(largest.name or "")
    line = " in ".join(filter(None, (name, place)))
    whole = largest.line_ns > _WHOLE * largest.ns
    part = "all" if whole else share(largest.line_ns, largest.ns)
    return f"{part} of that: {line}" if line else ""


def by_step(bound: Bound) -> str:
    """Return the GPU's wait for the host in each of several steps."""
    causes = bound.bottleneck
    if causes is None or len(causes.step_rows) < 2 or not causes.idle_ns:  # noqa: PLR2004 - one is the whole
        return ""
    parts = [
        f"{share(idle, busy + idle)} of #{step}"
        for step, busy, idle in causes.step_rows[:_MOST_STEPS]
    ]
    more = ", …" if len(causes.step_rows) > _MOST_STEPS else ""
    return f"the GPU idles {', '.join(parts)}{more}, {source(bound)}"


def bar(bound: Bound) -> str:
    """Draw the time of a step by cause, the GPU's work first, and name the parts."""
    causes = bound.bottleneck
    if causes is None or not causes.step_ns:
        return ""
    rows = parts(bound)
    least = _WORTH_NAMING * causes.step_ns
    drawn_parts = [
        (_GLYPHS.get(cause, _IDLE), printable(host_work_name(cause)), ns)
        for cause, ns in rows
        if ns >= least
    ]
    others = sum(ns for _, ns in rows if ns < least)
    if others >= least:
        drawn_parts.append((_OTHERS, "others", others))
    drawn, reached = "", 0.0
    for glyph, _, ns in drawn_parts:
        reached = min(1.0, reached + ns / causes.step_ns)
        drawn += glyph * (round(reached * _BAR) - len(drawn))
    shares = percents([ns for _, _, ns in drawn_parts], causes.step_ns)
    named = [
        f"{glyph} {name} {percent}%"
        for (glyph, name, _), percent in zip(drawn_parts, shares, strict=True)
    ]
    return f"{drawn.ljust(_BAR)}  {', '.join(named)}, {source(bound)}"


def colored_bar(line: str, *, color: bool) -> str:
    """Return a line with a bar in colour: the GPU's work, and what it waits for."""
    drawn, rest = line[:_BAR], line[_BAR:]
    work = "".join(FILL.values())
    runs = [
        styled("".join(run), "green" if gpu else "yellow", color=color)
        for gpu, run in groupby(drawn, lambda glyph: glyph in work)
    ]
    return "".join(runs) + rest


def parts(bound: Bound) -> list[tuple[str, float]]:
    """Return the time of a step by cause, in ns, the GPU's work first.

    What the host does while the GPU waits is by kind, if the host bounds the step.
    """
    causes = bound.bottleneck
    if causes is None:
        return []
    rows = list(causes.rows)
    if bound.waits is not None:
        rows = [row for row in rows if row[0] in FILL]
        rows += bound.waits.kind_rows
    rank = {cause: index for index, cause in enumerate(FILL)}
    return sorted(rows, key=lambda row: rank.get(row[0], len(rank)))


def bound_data(bound: Bound) -> dict[str, Any]:
    """Return the bound of a step as plain data."""
    causes = bound.bottleneck
    return {
        "text": sentence(bound),
        "by": bound.by if causes else None,
        "both": bound.both,
        "sure": bound.sure,
        "step_ns": round(bound.step_ns),
        "step_from": bound.step_from,
        "recorded_step_ns": round(bound.recorded_step_ns),
        "gpu_busy": bound.gpu_busy,
        "gpu_idle": bound.gpu_idle,
        "causes": [{"cause": cause, "ns": round(ns)} for cause, ns in causes.rows]
        if causes
        else [],
        "waits": waits_data(bound.waits) if bound.waits else None,
        "steps": [
            {"step": step, "busy_ns": round(busy), "idle_ns": round(idle)}
            for step, busy, idle in causes.step_rows
        ]
        if causes
        else [],
    }


def entry_data(host_time_entry: HostTimeEntry) -> dict[str, Any]:
    """Return a kind of what the host does, with its largest line, as plain data."""
    return {
        "text": entry(host_time_entry),
        "kind": host_time_entry.kind,
        "ns": round(host_time_entry.ns),
        "calls": host_time_entry.calls,
        "name": host_time_entry.name,
        "place": {
            "file": host_time_entry.file,
            "line": host_time_entry.line,
            "function": host_time_entry.function,
        },
        "line_ns": round(host_time_entry.line_ns),
    }


def waits_data(waits: IdleBreakdown) -> dict[str, Any]:
    """Return the host's activity while the GPU waits as plain data, per step."""
    columns = ("kind", "name", "file", "line", "function", "calls")
    return {
        "idle_ns": round(waits.idle_ns),
        "kinds": [{"kind": kind, "ns": round(ns)} for kind, ns in waits.kind_rows],
        "entries": [
            {name: row[name] for name in columns} | {"ns": round(row["time"])}
            for row in waits.line_rows[:_MOST_ENTRIES]
        ],
    }


def cause_name(cause: str) -> str:
    """Return a cause in words that can be printed."""
    return "doing something else" if cause == UNKNOWN else printable(cause)


def doubt(measured_ns: float, recorded_ns: float) -> str:
    """Return that a measured step is of other steps than the recorded ones.

    >>> doubt(90_000_000, 12_000_000)
    'not used: 90.0 ms a step measured, 12.0 ms as recorded; other steps were timed'
    """
    return (
        f"not used: {time(measured_ns)} a step measured, {time(recorded_ns)} as"
        " recorded; other steps were timed"
    )
