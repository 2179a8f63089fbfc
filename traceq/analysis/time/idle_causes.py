"""Host activity while the GPU idles.

The moments at which anything begins or ends form one sequence; between two of them
nothing changes, so counting the open events there classifies each interval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.gpu_idle import idle_in
from traceq.analysis.base.ownership import named_like
from traceq.analysis.base.sync_calls import DEVICE_SYNCS, blocking_calls
from traceq.analysis.patterns.compilation import all_captures
from traceq.analysis.patterns.host_collectives import host_collectives
from traceq.common.expressions import constant
from traceq.common.intervals import Cover, merged, spans
from traceq.model.names import DATA_REGION, GRAPH_CAPTURE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceq.analysis.base.steady import SteadySteps
    from traceq.model.trace import Trace

COMPILING = "compiling"
LOADING = "loading data"
CAPTURING = "capturing CUDA graphs"
ALLOCATING = "allocating memory"
COMMUNICATING = "communicating through the host"
WAITING = "waiting for the GPU"
LAUNCHING = "launching"
OPERATORS = "running operators"
PYTHON = "running Python"
CAUSES = (
    COMPILING,
    LOADING,
    CAPTURING,
    ALLOCATING,
    COMMUNICATING,
    WAITING,
    LAUNCHING,
    OPERATORS,
    PYTHON,
)
"""Host activities; where several overlap, the first in this list counts."""
UNKNOWN = "unknown"

_WINDOW = "window"
_SPANS = {"start": pl.Int64, "end": pl.Int64}
_ACTIVITY = {**_SPANS, "cause": pl.String}
_LAUNCHES = ("launch", "graph launch", "copy", "set")


def idle_causes(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the GPU's idle time in the steps, as recorded: ``cause``, ``time``.

    Of several GPUs it is the busiest one; without any, nothing idled.
    """
    if not trace.kernels.height:
        return pl.DataFrame(schema={"cause": pl.String, "time": pl.Int64})
    return causes_in(trace, idle_in(trace, steady.windows))


def causes_in(trace: Trace, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the host's activity in windows of time: ``cause`` and ``time``.

    The windows have ``start`` and ``end`` and do not overlap.
    """
    times = _times(trace, windows).sum()
    return (
        pl.DataFrame({"cause": times.columns, "time": times.row(0)})
        .filter(pl.col("time") > 0)
        .sort("time", "cause", descending=[True, False])
    )


def idle_stretches(trace: Trace, start: int, end: int) -> pl.DataFrame:
    """Return the GPU's idle intervals in a window, with the host's activity.

    ``start``, ``end`` and ``cause``, in order; what lasts is one row.
    """
    window = pl.DataFrame({"start": [start], "end": [end]})
    if not trace.kernels.height:
        return window.clear().with_columns(cause=pl.lit(UNKNOWN))
    done = host_activities(trace).filter(pl.col("start") < end, pl.col("end") > start)
    stretches = _stretches(done, idle_in(trace, window))
    begins = (pl.col("cause") != pl.col("cause").shift(1)) | (
        pl.col("start") != pl.col("end").shift(1)
    )
    return (
        stretches.group_by(
            run=begins.fill_null(value=True).cum_sum(), maintain_order=True
        )
        .agg(pl.col("start").first(), pl.col("end").last(), pl.col("cause").first())
        .select("start", "end", "cause")
    )


def _stretches(activities: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the windows cut by what the host did: ``start``, ``end``, ``cause``."""
    causes = [cause for cause in CAUSES if (activities["cause"] == cause).any()]
    intervals = pl.concat(
        [
            windows.select("start", "end", cause=pl.lit(_WINDOW)),
            activities,
        ]
    )
    moments = pl.concat(
        [
            intervals.select("cause", time="start", change=pl.lit(1, pl.Int32)),
            intervals.select("cause", time="end", change=pl.lit(-1, pl.Int32)),
        ]
    ).sort("time")
    stretches = moments.select(
        "time",
        *(
            pl.when(pl.col("cause") == cause)
            .then("change")
            .otherwise(0)
            .cum_sum()
            .alias(cause)
            for cause in (_WINDOW, *causes)
        ),
        length=pl.col("time").shift(-1) - pl.col("time"),
    )
    cause = pl.coalesce(
        *(pl.when(pl.col(cause) > 0).then(pl.lit(cause)) for cause in causes),
        pl.lit(UNKNOWN),
    )
    return stretches.filter(pl.col(_WINDOW) > 0, pl.col("length") > 0).select(
        start="time", end=pl.col("time") + pl.col("length"), cause=cause
    )


def causes_of(trace: Trace, gaps: pl.DataFrame) -> pl.Series:
    """Return for each gap, with ``start`` and ``end``, the host's main activity.

    Of what it did at once, the first of CAUSES counts, as in ``causes_in``.
    """
    shares = _times(trace, gaps)
    most = pl.concat_list(shares.columns).list.arg_max()
    return pl.Series(shares.columns)[shares.select(most).to_series()].alias("cause")


def _times(trace: Trace, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the time of each cause in each window, a column per cause."""
    so_far = nothing = constant(0, windows.height, pl.Int64)
    times = dict.fromkeys((*CAUSES, UNKNOWN), nothing)
    for cause, cover in _covers(trace).items():
        covered = cover.of(windows)
        times[cause] = covered - so_far
        so_far = covered
    times[UNKNOWN] = windows["end"] - windows["start"] - so_far
    return pl.DataFrame(times)


@cached_per_trace
def _covers(trace: Trace) -> dict[str, Cover]:
    """Return for each cause that there is when it went on, or any that counts first."""
    activities = _activities(trace)
    covers = {}
    reached: list[pl.DataFrame] = []
    for cause in CAUSES:
        if cause in activities:
            covers[cause] = Cover(pl.concat([*reached, activities[cause]]))
            reached = [covers[cause].spans]
    return covers


@cached_per_trace
def host_activities(trace: Trace) -> pl.DataFrame:
    """Return the host's activities: ``cause``, one of CAUSES, ``start``, ``end``.

    Several may go on at once, on one thread or on several.
    """
    activities = [
        spans.with_columns(cause=pl.lit(cause))
        for cause, spans in _activities(trace).items()
    ]
    return pl.concat(activities or [pl.DataFrame(schema=_ACTIVITY)])


@cached_per_trace
def _activities(trace: Trace) -> dict[str, pl.DataFrame]:
    """Return the spans of each cause that occurs: ``start`` and ``end``."""
    ops, runtime, frames = trace.host_ops, trace.runtime, trace.frames
    blocking = blocking_calls(trace)
    by_cause = {
        COMPILING: (_when(ops, ops["compiling"]),),
        LOADING: (_data_regions(trace),),
        CAPTURING: (
            _when(runtime, runtime["call"] == "capture"),
            _when(ops, named_like(ops, GRAPH_CAPTURE)),
            # All of a run of compiled code that sets up a graph is slower for it.
            spans(all_captures(trace)),
        ),
        ALLOCATING: (_when(runtime, runtime["call"] == "allocation"),),
        COMMUNICATING: (host_collectives(trace)[["start", "end"]],),
        WAITING: (_when(blocking, blocking["kind"].is_in(DEVICE_SYNCS)),),
        LAUNCHING: (_when(runtime, runtime["call"].is_in(_LAUNCHES)),),
        OPERATORS: (_when(ops, ops["parent"].is_null()),),
        PYTHON: (_when(frames, frames["own"]),),
    }
    some = {
        cause: [table for table in tables if table.height]
        for cause, tables in by_cause.items()
    }
    return {
        cause: pl.concat([merged(table) for table in tables])
        for cause, tables in some.items()
        if tables
    }


def _when(table: pl.DataFrame, chosen: pl.Series) -> pl.DataFrame:
    """Return the spans of the chosen rows: a filter of all columns takes far longer."""
    start, length = table["ts"].filter(chosen), table["dur"].filter(chosen)
    return pl.DataFrame({"start": start, "end": start + length})


def host_spans(trace: Trace, causes: Iterable[str]) -> pl.DataFrame:
    """Return the spans in which the host did any of some causes: ``start``, ``end``."""
    wanted, activities = set(causes), _activities(trace)
    chosen = [spans for cause, spans in activities.items() if cause in wanted]
    return pl.concat(chosen or [pl.DataFrame(schema=_SPANS)])


def _data_regions(trace: Trace) -> pl.DataFrame:
    """Return the regions in which the program loads data, outside of workers."""
    regions = trace.annotations
    return _when(regions, ~regions["on_gpu"] & named_like(regions, DATA_REGION))
