"""What waits for what in the steps of a trace: the model that a replay runs.

The host works through a row of calls; some of them start work on the GPU, and some
wait until work is done. Work on the GPU begins when the work before it on its stream is
done, when the host has launched it, and when work of another stream is done that it
needs. How long each of these takes is read off the trace where it was what the work
waited for, and is the usual time of the others elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.steady import in_steps
from traceq.intervals import spans
from traceq.model.names import BLOCKING_COPY, BLOCKING_FREE, PAGEABLE

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.trace import Trace

# What a call takes the host, and what recording it adds: of Python, of an operator
# (more where its stack is taken too), of the runtime. Found in programs that wait for
# the host, by what their steps take and took while recorded, on torch 2.11.
_FRAME = (300, 700)
_OP, _OP_WITH_STACK = (3_300, 1_500), (3_300, 4_000)
_CALL = (1_000, 2_000)
# Recordings of the same program differ by so much; what is beyond is the host's own.
_NOISE = 2.0
_ABOUT = 500_000
_SIDES = ("start", "end")
# From so many launches on that the GPU has not begun with, the next has to wait.
_QUEUE = 1000
# Work that begins so much later than it could was waiting for another stream.
_UNEXPLAINED = 2_000
# What a launch takes to reach an idle GPU, where no launch of the trace shows it.
_LATENCY = 5_000
# Clocks of host and GPU that are further apart than this say nothing of a launch.
_LONGEST_LATENCY = 50_000


@dataclass(frozen=True)
class StepModel:
    """The steps as work of the host and of the GPU, and what waits for what."""

    work: pl.DataFrame
    """What the GPU does, in the order of each stream: ``id`` (of the kernel), ``lane``
    (its stream), ``at`` (when the host launched it), ``start``, ``end``, ``dur``,
    ``latency`` (from its launch to its start on a GPU that waits for it), ``gap`` (from
    the end of what it waits for to its start), ``after`` (the row of another stream
    that it waits for), ``before`` (when what came before it on its stream was done)."""
    waits: pl.DataFrame
    """Calls in which the host waits, in order: ``id`` (of the call), ``start``,
    ``end``, ``on`` (the row of the work it waits for; none if it is of an earlier
    step), ``resume`` (how long it takes to go on after that)."""
    host: pl.DataFrame
    """The host's time cut into pieces: ``start``, ``end`` and ``own``, what it would
    take without the recording, by what was recorded in it."""
    steps: int
    repeats: bool
    """Whether another such step follows; not so in a trace without steps."""


def build_model(trace: Trace, steady: SteadySteps) -> StepModel:
    """Return the model of the steps."""
    work = _work(trace, steady)
    steps = trace.steps.filter(~pl.col("warmup"))
    window = steady.windows
    if steps.height:
        window = spans(steps)
    waits = _waits(trace, steady, work)
    return StepModel(
        work=work,
        waits=waits,
        host=_host(trace, window, work, waits),
        steps=steady.count,
        repeats=steps.height > 0,
    )


def _work(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    done = pl.col("end").cum_max().shift(1).over("device", "stream")
    everything = trace.kernels.select(
        "id", "device", "stream", "dur", start="ts", end=pl.col("ts") + pl.col("dur")
    ).sort("device", "stream", "start", "id")
    # What earlier steps left to do is done before these begin.
    work = (
        everything.with_columns(done=done)
        .join(steady.kernels.select("id", "launch"), on="id", maintain_order="left")
        .with_columns(lane=pl.struct("device", "stream").rank("dense") - 1)
        .with_row_index("row")
    )
    launched = trace.runtime["ts"].gather(work["launch"])
    work = work.with_columns(at=launched).with_columns(
        at=pl.min_horizontal(pl.col("at").cum_max().over("lane"), "start")
    )
    latency = pl.col("start") - pl.col("at")
    gap = pl.col("start") - pl.col("done")
    found = work.select(latency.filter(pl.col("at") > pl.col("done")).median()).item()
    usual = round(min(found or _LATENCY, _LONGEST_LATENCY))
    work = work.with_columns(
        at=pl.col("at").fill_null(pl.col("start") - usual)
    ).with_columns(alone=(pl.col("at") + usual > pl.col("done")).fill_null(value=True))
    between = round(work.select(gap.filter(~pl.col("alone")).median()).item() or 0)
    # Of the two that work can wait for, the one it did not wait for was over before.
    work = work.with_columns(
        latency=pl.min_horizontal(latency, usual),
        gap=pl.min_horizontal(gap.fill_null(0), between),
    )
    work = _with_other_streams(work)
    other = pl.col("start") - pl.col("after_end")
    return work.select(
        "id",
        "lane",
        "at",
        "start",
        "end",
        "dur",
        "after",
        before=pl.col("done"),
        latency=pl.when(pl.col("alone") & pl.col("after").is_null())
        .then(latency)
        .otherwise("latency"),
        gap=pl.coalesce(other, pl.when("alone").then("gap").otherwise(gap)),
    )


def _with_other_streams(work: pl.DataFrame) -> pl.DataFrame:
    """Add ``after`` and ``after_end``: what another stream had to do before."""
    ready = pl.max_horizontal("done", pl.col("at") + pl.col("latency"))
    work = work.with_columns(ready=ready)
    late = work.filter(pl.col("start") - pl.col("ready") > _UNEXPLAINED).sort("start")
    if work["lane"].n_unique() < 2:  # noqa: PLR2004 - one stream waits for no other
        late = late.clear()
    ended = work.select(
        "device",
        after_end="end",
        after="row",
        after_lane="lane",
        after_at="at",
    ).sort("after_end")
    found = late.join_asof(
        ended,
        left_on="start",
        right_on="after_end",
        by="device",
        check_sortedness=False,
    ).filter(
        pl.col("after_lane") != pl.col("lane"),
        pl.col("after_end") > pl.col("ready"),
        pl.col("after_at") <= pl.col("at"),
    )
    return work.join(
        found.select("row", "after", "after_end"),
        on="row",
        how="left",
        maintain_order="left",
    )


def _waits(trace: Trace, steady: SteadySteps, work: pl.DataFrame) -> pl.DataFrame:
    calls = in_steps(trace.runtime, trace, steady).select(
        "id", "name", "call", start="ts", end=pl.col("ts") + pl.col("dur")
    )
    pageable = (
        trace.kernels.filter(pl.col("name").cast(pl.String).str.contains(PAGEABLE))
        .select(id="launch")
        .drop_nulls()
        .unique()
        .with_columns(pageable=pl.lit(value=True))
    )
    name = pl.col("name").cast(pl.String)
    blocks = (
        (pl.col("call") == "sync")
        | ((pl.col("call") == "copy") & name.str.contains(BLOCKING_COPY))
        | pl.col("pageable").is_not_null()
        | name.str.contains(BLOCKING_FREE)
        | ((pl.col("call") == "launch") & (_queued(work, calls) >= _QUEUE))
    )
    # All work of the trace: what was launched before these steps is waited for too.
    ended = (
        trace.kernels.select("id", done=pl.col("ts") + pl.col("dur"), began="ts")
        .join(
            work.select("id", "at", on=pl.int_range(pl.len(), dtype=pl.UInt32)),
            on="id",
            how="left",
        )
        .drop("id")
        .sort("done")
    )
    return (
        calls.join(pageable, on="id", how="left", maintain_order="left")
        .filter(blocks)
        .sort("end")
        .join_asof(ended, left_on="end", right_on="done", check_sortedness=False)
        .filter(
            pl.col("done") > pl.col("start"),
            pl.coalesce("at", "began") <= pl.col("start"),
        )
        .sort("start", "id")
        .select("id", "start", "end", "on", resume=pl.col("end") - pl.col("done"))
    )


def _host(
    trace: Trace, window: pl.DataFrame, work: pl.DataFrame, waits: pl.DataFrame
) -> pl.DataFrame:
    roots = spans(trace.ops.filter(pl.col("parent").is_null()))
    moments = pl.concat(
        [
            *(table[side] for table in (window, waits, roots) for side in _SIDES),
            work["at"],
        ]
    )
    begin, end = window.select(pl.min("start"), pl.max("end")).row(0)
    # Of a host that does nothing there still is an instant.
    edges = pl.Series([begin or 0, max(end or 0, (begin or 0) + 1)])
    inside = moments.is_between(*edges)
    moments = pl.concat([moments.filter(inside), edges]).unique().sort()
    op = _OP_WITH_STACK if trace.facts.stacks else _OP
    events = ((trace.frames, _FRAME), (trace.ops, op), (trace.runtime, _CALL))
    plain = recorded = pl.repeat(0, len(moments), dtype=pl.Int64, eager=True)
    for table, (cost, overhead) in events:
        count = table["ts"].sort().search_sorted(moments).cast(pl.Int64)
        plain += count * cost
        recorded += count * (cost + overhead)
    pieces = pl.DataFrame(
        {
            "start": moments[:-1],
            "end": moments[1:],
            "plain": plain.diff()[1:],
            "recorded": recorded.diff()[1:],
        }
    )
    length = pl.col("end") - pl.col("start")
    # The time of an event is not spent at the instant it begins, but around it.
    about = pl.col("start") // _ABOUT
    took = length.sum().over(about)
    alone, traced = (
        pl.col(column).sum().over(about) for column in ("plain", "recorded")
    )
    own = (
        pl.when(took < traced)
        .then(took * alone / traced)
        .otherwise(alone + (took - _NOISE * traced).clip(lower_bound=0))
    )
    return pieces.select("start", "end", own=length * own / took)


def _queued(work: pl.DataFrame, calls: pl.DataFrame) -> pl.Series:
    """Return how much work was launched before each call and had not begun."""
    launched = work["at"].sort().search_sorted(calls["start"])
    begun = work["start"].sort().search_sorted(calls["start"])
    return launched.cast(pl.Int64) - begun.cast(pl.Int64)
