"""What bounds a step, as one sentence, one bar, and data: the same in all reports."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.replay import host_account
from traceq.analysis.time import host_kinds, idle_causes
from traceq.analysis.time.gpu_causes import (
    BETWEEN,
    COMMUNICATING,
    COMPUTING,
    COPYING,
    MOVING,
    ON_GPU,
)
from traceq.analysis.time.host_kinds import DISPATCH
from traceq.analysis.time.idle_causes import UNKNOWN
from traceq.report.base.text import of_function, printable, styled
from traceq.units import share, time
from traceq.words import counted

if TYPE_CHECKING:
    from traceq.analysis.replay.bound import Bound
    from traceq.analysis.replay.idle_account import Entry, IdleAccount

NO_GPU = "no GPU work in the trace"
AS_RECORDED = "as recorded"
MEASURED = "measured without the profiler"
_SOURCES = {
    "measured": MEASURED,
    "estimated": "estimated without the profiler",
    "recorded": AS_RECORDED,
}
_FILL = {
    COMPUTING: "█",
    MOVING: "▓",
    COMMUNICATING: "▒",
    COPYING: "░",
    BETWEEN: "╌",
}
# A letter for each thing that the host does, so that a bar reads without colour.
_LETTERS = {
    host_kinds.DISPATCH: "o",
    host_account.NEW_SHAPE: "s",
    host_account.LOADING: "v",
    host_account.SLOW: "t",
    host_kinds.LAUNCHES: "l",
    host_kinds.PYTHON: "p",
    host_kinds.WITH_LIBRARIES: "P",
    host_kinds.NO_STACKS: "q",
    host_kinds.HOOKS: "h",
    host_kinds.LIBRARY: "b",
    host_kinds.MODULES: "m",
    host_kinds.OPTIMIZER: "z",
    host_kinds.ENGINE: "a",
    host_kinds.COMPILED: "g",
    host_kinds.DATA: "d",
    host_kinds.COMPILING: "c",
    host_kinds.CAPTURING: "r",
    host_kinds.SYNC: "w",
    host_kinds.BLOCKING: "k",
    host_kinds.BLOCKED: "i",
    host_kinds.PROFILER: "f",
    idle_causes.ALLOCATING: "e",
    idle_causes.COMMUNICATING: "n",
    idle_causes.LAUNCHING: "l",
    idle_causes.OPERATORS: "o",
    idle_causes.PYTHON: "p",
}
_IDLE = "·"
_GLYPHS = _FILL | _LETTERS
_BAR = 40
_MOST_STEPS = 6
# Causes that take a smaller share of the step are not listed.
_WORTH_NAMING = 0.01
# A line that has more of its kind is all of it.
_WHOLE = 0.995
_MOST_ENTRIES = 20


def source(bound: Bound) -> str:
    """Return where the step time of a bound comes from."""
    return _SOURCES[bound.step_from]


def sentence(bound: Bound) -> str:
    """Return what bounds a step: the GPU, or the host, what it does then and where.

    It is "likely" where the recording allows the other answer too.
    """
    found = bound.bottleneck
    if found is None:
        return NO_GPU
    likely = "" if bound.sure else "likely "
    whole = "a step" if bound.stepped else "the trace"
    step = f"{whole} ({time(bound.step_ns)} {source(bound)})"
    if bound.by == "gpu":
        busy = share(bound.gpu_busy, 1)
        return f"{likely}GPU-bound: the GPU has work for {busy} of {step}"
    idle = share(bound.gpu_idle, 1)
    return f"{likely}host-bound: the GPU idles {idle} of {step}{_mostly(bound.waits)}"


def _mostly(waits: IdleAccount | None) -> str:
    """Return what the host does most while the GPU idles, and where most of that."""
    largest = waits.largest if waits else None
    if waits is None or largest is None:
        return ""
    most = "most of it" if largest.ns > waits.idle_ns / 2 else "the largest part"
    return f"; {most}, {share(largest.ns, waits.idle_ns)}, goes to {entry(largest)}"


def entry(largest: Entry) -> str:
    """Return a kind of what the host does, with its largest line."""
    kind = "something unknown" if largest.kind == UNKNOWN else largest.kind
    if largest.kind == DISPATCH:
        kind = f"{counted(round(largest.calls), 'operator')} at their usual cost"
    source = of_function(largest.file, largest.line, largest.function)
    # A function is named by its place already.
    name = "" if largest.name == largest.function else printable(largest.name or "")
    line = " in ".join(filter(None, (name, source)))
    if not line:
        return kind
    part = share(largest.line_ns, largest.ns)
    whole = largest.line_ns > _WHOLE * largest.ns
    return f"{kind} ({line})" if whole else f"{kind} ({part} of that: {line})"


def by_step(bound: Bound) -> str:
    """Return how long the GPU waits for the host in each of several steps."""
    found = bound.bottleneck
    if found is None or found.steps.height < 2 or not found.idle_ns:  # noqa: PLR2004 - one is the whole
        return ""
    parts = [
        f"{share(idle, busy + idle)} of #{step}"
        for step, busy, idle in found.steps.head(_MOST_STEPS).iter_rows()
    ]
    more = ", …" if found.steps.height > _MOST_STEPS else ""
    return f"the GPU idles {', '.join(parts)}{more}, {source(bound)}"


def bar(bound: Bound) -> str:
    """Draw the time of a step by cause, the GPU's work first, and name the parts."""
    found = bound.bottleneck
    if found is None or not found.step_ns:
        return ""
    rows = parts(bound)
    drawn, reached = "", 0.0
    for cause, ns in rows:
        reached = min(1.0, reached + ns / found.step_ns)
        drawn += _GLYPHS.get(cause, _IDLE) * (round(reached * _BAR) - len(drawn))
    named = [
        f"{_GLYPHS.get(cause, _IDLE)} {cause_name(cause)} {share(ns, found.step_ns)}"
        for cause, ns in rows
        if ns >= _WORTH_NAMING * found.step_ns
    ]
    return f"{drawn.ljust(_BAR)}  {', '.join(named)}, {source(bound)}"


def colored_bar(line: str, *, color: bool) -> str:
    """Return a line with a bar in colour: the GPU's work, and what it waits for."""
    drawn, rest = line[:_BAR], line[_BAR:]
    work = "".join(_FILL.values())
    runs = [
        styled("".join(run), "green" if gpu else "yellow", color=color)
        for gpu, run in groupby(drawn, lambda glyph: glyph in work)
    ]
    return "".join(runs) + rest


def parts(bound: Bound) -> list[tuple[str, float]]:
    """Return the time of a step by cause, in ns, the GPU's work first.

    What the host does while the GPU waits is by kind, if the host bounds the step.
    """
    found = bound.bottleneck
    if found is None:
        return []
    rows = found.causes.rows()
    if bound.waits is not None:
        on_gpu = found.causes.filter(pl.col("cause").is_in(ON_GPU))
        rows = [*on_gpu.rows(), *bound.waits.kinds.select("kind", "time").rows()]
    rank = {cause: index for index, cause in enumerate(ON_GPU)}
    return sorted(rows, key=lambda row: rank.get(row[0], len(rank)))


def bound_data(bound: Bound) -> dict[str, Any]:
    """Return what bounds a step as plain data."""
    found = bound.bottleneck
    return {
        "text": sentence(bound),
        "by": bound.by if found else None,
        "sure": bound.sure,
        "step_ns": round(bound.step_ns),
        "step_from": bound.step_from,
        "recorded_step_ns": round(bound.recorded_step_ns),
        "gpu_busy": bound.gpu_busy,
        "gpu_idle": bound.gpu_idle,
        "causes": [
            {"cause": cause, "ns": round(ns)} for cause, ns in found.causes.rows()
        ]
        if found
        else [],
        "waits": waits_data(bound.waits) if bound.waits else None,
        "steps": [
            {"step": step, "busy_ns": round(busy), "idle_ns": round(idle)}
            for step, busy, idle in found.steps.rows()
        ]
        if found
        else [],
    }


def entry_data(one: Entry) -> dict[str, Any]:
    """Return a kind of what the host does, with its largest line, as plain data."""
    return {
        "text": entry(one),
        "kind": one.kind,
        "ns": round(one.ns),
        "calls": one.calls,
        "name": one.name,
        "place": {"file": one.file, "line": one.line, "function": one.function},
        "line_ns": round(one.line_ns),
    }


def waits_data(waits: IdleAccount) -> dict[str, Any]:
    """Return what the host does while the GPU waits as plain data, per step."""
    columns = ("kind", "name", "file", "line", "function", "calls")
    lines = waits.lines.head(_MOST_ENTRIES)
    return {
        "idle_ns": round(waits.idle_ns),
        "kinds": [
            {"kind": kind, "ns": round(ns)} for kind, ns, _ in waits.kinds.iter_rows()
        ],
        "entries": [
            {name: row[name] for name in columns} | {"ns": round(row["time"])}
            for row in lines.iter_rows(named=True)
        ],
    }


def cause_name(cause: str) -> str:
    """Return a cause in words that can be printed."""
    return "doing something else" if cause == UNKNOWN else printable(cause)
