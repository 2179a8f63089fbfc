"""Tracks that are added to a trace: steps, idle time and findings, in one process.

They may add a small fraction of the file's size, which the tracks share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.gpu_idle import idle_in
from traceq.analysis.base.steady import steady_steps
from traceq.analysis.time.idle_causes import causes_of
from traceq.annotate.counters import counters
from traceq.annotate.events import Writer, arguments, literal
from traceq.annotate.slices import arrows, finding_slices, inside
from traceq.common.expressions import END
from traceq.common.intervals import disjoint
from traceq.common.units import share, time
from traceq.report.bound import cause_name
from traceq.report.lint import content as words

if TYPE_CHECKING:
    from traceq.linter.view import View
    from traceq.model.lint_report import RecordingReport
    from traceq.model.trace import Trace

PROCESS = "traceq"
# Far above what systems give processes, and GPUs.
_FIRST_PID = 1_000_000_000
_STEPS, _IDLE, _FIRST_RULE = 1, 2, 10
# Bytes of an event's text, and the share of the room that each kind gets.
_SLICE, _FLOW, _POINT = 240, 230, 110
_ROOM = {"steps": 0.05, "counters": 0.2, "idle": 0.15, "slices": 0.4, "flows": 0.2}
_MOST_POINTS = 2000
_COUNTERS = 3


@dataclass
class Added:
    """Events and tracks that are added to a trace."""

    events: list[str] = field(default_factory=list)
    """Each is one event, or several that belong together, as JSON."""
    tracks: int = 0
    slices: int = 0
    """Number of slices of findings."""
    left_out: int = 0
    """Number of findings' kernels, gaps and parts of the host's time that have no
    slice."""
    joined: int = 0
    """Number of them that share a slice with others."""

    @property
    def text(self) -> bytes:
        """All events, as they stand between those of a file."""
        return ",\n".join(self.events).encode()


def tracks_of(
    view: View,
    outcome: RecordingReport,
    *,
    origin_ns: int,
    room: int,
    window: tuple[int, int] | None = None,
) -> Added:
    """Return the events that show findings in the trace, in about this many bytes.

    ``origin_ns`` is when ts is 0, as the file counts. Only what is in the window is
    shown, if one is given.
    """
    writer = Writer(_free_pid(view.trace), origin_ns)
    start, end = window or _extent(view.trace)
    added = Added([writer.name("process", PROCESS, index=-1)])
    for part in (
        _steps(view.trace, outcome, start, end, room),
        _idle(view, start, end, room),
    ):
        if part is not None:
            tid, name, rows = part
            added.events.append(writer.name("thread", name, tid, tid))
            added.events.extend(writer.slices(rows.with_columns(tid=pl.lit(tid))))
            added.tracks += 1
    slices = finding_slices(
        view, outcome, (start, end), int(room * _ROOM["slices"] / _SLICE), _FIRST_RULE
    )
    for tid, name in slices.tracks.items():
        added.events.append(writer.name("thread", name, tid, tid))
    added.events.extend(writer.slices(slices.rows))
    pointing = arrows(view.trace, slices.rows, int(room * _ROOM["flows"] / _FLOW))
    added.events.extend(writer.flows(pointing))
    added.tracks += len(slices.tracks)
    added.slices, added.joined = slices.rows.height, slices.joined
    added.left_out = slices.left_out
    if view.trace.kernels.height:
        most = int(room * _ROOM["counters"] / _POINT / _COUNTERS)
        for counter in counters(
            view.trace, start, end, max(2, min(most, _MOST_POINTS))
        ):
            added.events.extend(
                writer.counter(counter.name, counter.unit, counter.points)
            )
    return added


def _free_pid(trace: Trace) -> int:
    """Return a process id that nothing in the trace has."""
    taken = set(trace.threads["pid"].to_list())
    return next(pid for pid in count(_FIRST_PID) if str(pid) not in taken)


def _extent(trace: Trace) -> tuple[int, int]:
    windows = [trace.steps.select("start", "end")]
    windows += [
        table.select(start="ts", end=END)
        for table in (trace.kernels, trace.ops, trace.annotations)
    ]
    every = pl.concat(windows).filter(pl.col("start") >= 0)
    if not every.height:
        return 0, 1
    start, end = every.select(pl.col("start").min(), pl.col("end").max()).row(0)
    return start, max(end, start + 1)


def _steps(
    trace: Trace, outcome: RecordingReport, start: int, end: int, room: int
) -> tuple[int, str, pl.DataFrame] | None:
    """Return the track of steps: one slice over all with the verdict, and each."""
    most = max(1, int(room * _ROOM["steps"] / _SLICE))
    steps = disjoint(inside(trace.steps, start, end).head(most))
    rows = [
        {
            "start": row["start"],
            "end": row["end"],
            "name": literal(f"step {row['step']}" + " (warm-up)" * row["warmup"]),
            "args": arguments(
                as_recorded=time(row["time"]),
                GPU_busy=share(row["gpu_busy"], row["time"]),
                launches=row["launches"],
            ),
        }
        for row in steps.iter_rows(named=True)
    ]
    first, last = (
        (steps["start"][0], steps["end"][-1]) if rows else _whole(trace, start, end)
    )
    bound = outcome.bound
    causes = bound.bottleneck.rows if bound and bound.bottleneck else ()
    parts = {
        cause_name(cause): share(taken, bound.step_ns)
        for cause, taken in causes
        if bound
    }
    whole = {
        "start": first,
        "end": last,
        "name": literal(words.verdict(outcome)),
        "args": arguments(
            trace=words.facts(outcome),
            a_step_by_cause=parts,
            fixes=words.together(outcome),
        ),
    }
    return _STEPS, "steps", pl.DataFrame([whole, *rows], orient="row")


def _whole(trace: Trace, start: int, end: int) -> tuple[int, int]:
    windows = steady_steps(trace).windows
    return max(start, windows["start"][0]), min(end, windows["end"][-1])


def _idle(
    view: View, start: int, end: int, room: int
) -> tuple[int, str, pl.DataFrame] | None:
    """Return the track of the longest idle gaps of the steps, by cause."""
    if not view.trace.kernels.height:
        return None
    most = max(1, int(room * _ROOM["idle"] / (_SLICE / 2)))
    gaps = inside(idle_in(view.trace, view.steady.windows), start, end)
    gaps = gaps.with_columns(length=pl.col("end") - pl.col("start"))
    longest = gaps.sort("length", "start", descending=[True, False]).head(most)
    if not longest.height:
        return None
    rows = longest.sort("start").with_columns(
        cause=causes_of(view.trace, longest.sort("start"))
    )
    names = {cause: literal(cause_name(cause)) for cause in rows["cause"].unique()}
    return (
        _IDLE,
        f"GPU idle, {_counted(longest.height, gaps.height)}",
        rows.select(
            "start",
            "end",
            name=pl.col("cause").replace_strict(names),
            args=pl.lit("{}"),
        ),
    )


def _counted(count: int, of: int) -> str:
    return f"{count:,} of {of:,} gaps" if count < of else "by cause"
