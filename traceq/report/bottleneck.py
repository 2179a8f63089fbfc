"""What a step waits for, as one sentence and one bar."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.replay.bottleneck import (
    BETWEEN,
    COMMUNICATING,
    COMPUTING,
    COPYING,
    MOVING,
    ON_GPU,
)
from traceq.analysis.replay.bound import GPU_BOUND
from traceq.analysis.time.idle_causes import UNKNOWN
from traceq.report.base.text import place, printable
from traceq.units import share

if TYPE_CHECKING:
    from traceq.analysis.replay.bottleneck import Bottleneck

_FILL = {
    COMPUTING: "█",
    MOVING: "▓",
    COMMUNICATING: "▒",
    COPYING: "▒",
    BETWEEN: "╌",
}
_IDLE = "·"
_BAR = 40
_MOST_STEPS = 6
# Of a step without the profiler that is not much shorter than recorded nothing is said.
SHORTER = 0.97
# Causes that take less of the step are not worth a word.
_LEAST = 0.005


def sentence(found: Bottleneck, *, likely: bool = False) -> str:
    """Say what a step waits for: the GPU and what it does, or the host and where.

    Where the host's time is an estimate that could be the other way round, it is only
    likely so.
    """
    unsure = "likely " if likely else ""
    idle = found.idle / found.step_ns if found.step_ns else 0.0
    if 1 - idle >= GPU_BOUND:
        busy = share(1 - idle, 1)
        return f"{unsure}GPU-bound: the GPU has work for {busy} of a step"
    text = f"{unsure}host-bound: the GPU idles {share(idle, 1)} of a step"
    host = found.waits.filter(~pl.col("what").is_in(ON_GPU))
    worst = host["what"].first()
    if isinstance(worst, str):
        text += f", most of it while the host is {_said(worst)}"
    where = found.places.head(1)
    if where.height:
        file, line, function, _ = where.row(0)
        text += f", before launches of {place(file, line, function)}"
    return text


def by_step(found: Bottleneck) -> str:
    """Say how long the GPU waits for the host in each of several steps."""
    if found.steps.height < 2 or not found.idle:  # noqa: PLR2004 - one is the whole
        return ""
    parts = [
        f"{share(idle, busy + idle)} of #{step}"
        for step, busy, idle in found.steps.head(_MOST_STEPS).iter_rows()
    ]
    more = ", …" if found.steps.height > _MOST_STEPS else ""
    return f"the GPU idles {', '.join(parts)}{more}"


def bar(found: Bottleneck) -> str:
    """Draw what a step waits for, the GPU's work first, and name the parts."""
    rank = {what: at for at, what in enumerate(ON_GPU)}
    rows = sorted(found.waits.iter_rows(), key=lambda row: rank.get(row[0], len(rank)))
    drawn, reached = "", 0.0
    for what, time in rows:
        reached += time / found.step_ns
        drawn += _FILL.get(what, _IDLE) * (round(reached * _BAR) - len(drawn))
    parts = [
        f"{_FILL.get(what, _IDLE)} {_said(what)} {share(time, found.step_ns)}"
        for what, time in rows
        if time >= _LEAST * found.step_ns
    ]
    return f"{drawn.ljust(_BAR)}  {', '.join(parts)}"


def _said(what: str) -> str:
    return "doing something else" if what == UNKNOWN else printable(what)
