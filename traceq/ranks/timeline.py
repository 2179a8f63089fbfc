"""A rank's own time, from one meeting with other ranks to the next.

The meetings are the moments at which a collective is ready, and those at which the rank
goes on after having been held by one. Between two of them the rank's own time is all in
which no collective held it: the GPU computed, or did not begin work that was queued, or
idled for the host, which loaded data, allocated memory, waited in a sync, or did
something else. Beside that the host has a pace of its own: what it takes from launching
one collective to launching the next, waits for the GPU left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import LONGEST_LAUNCH_LATENCY_NS
from traceq.analysis.base.callers import innermost
from traceq.analysis.base.sync_calls import blocking_calls
from traceq.analysis.time.idle_causes import (
    ALLOCATING,
    LOADING,
    WAITING,
    host_spans,
)
from traceq.common.expressions import END, asof, text
from traceq.common.intervals import covered_until, disjoint, spans
from traceq.graph.devices import busiest_device
from traceq.model.names import REGION
from traceq.ranks.collectives import host_compute

if TYPE_CHECKING:
    from traceq.model.trace import Trace

COMPUTE, STALLED, DATA, ALLOCATION, SYNC, HOST = (
    "compute",
    "stalled",
    "data",
    "allocation",
    "sync",
    "host",
)
PARTS = (COMPUTE, STALLED, DATA, ALLOCATION, SYNC, HOST)
"""Parts of a rank's own time; each instant counts once."""

READY, RESUME = "ready", "resume"
"""The two kinds of meetings."""

MEETINGS = pl.Schema(
    {
        "collective": pl.Int32(),  # its row among the rank's collectives
        "meeting": pl.Enum([READY, RESUME]),
        "at": pl.Int64(),
        **dict.fromkeys(PARTS, pl.Int64()),  # own time since the meeting before
        "issue": pl.Int64(),  # host's own time since the launch before; 0 if resumed
        "region": pl.String(),  # where the host was in the longest idle gap
        "file": pl.String(),
        "line": pl.Int64(),
        "function": pl.String(),
    }
)
# Shorter gaps are not looked up.
_LONG_GAP_NS = 50_000
_MOST_PLACES = 500


def meetings(trace: Trace, collectives: pl.DataFrame) -> pl.DataFrame:
    """Return the meetings of a rank in order, with its own time before each."""
    rows = collectives.with_row_index("collective")
    every = pl.concat(
        [
            rows.select("collective", pl.lit(READY).alias("meeting"), at="ready"),
            rows.filter(pl.col("held").is_not_null()).select(
                "collective", pl.lit(RESUME).alias("meeting"), at="end"
            ),
        ]
    ).sort("at", "meeting", "collective", maintain_order=True)
    held = collectives.drop_nulls("held").select(start="held", end="end")
    parts = _parts(trace, held, every["at"])
    places = _places(trace, held, every["at"])
    issue = every.join(
        _issue(trace, rows).with_columns(meeting=pl.lit(READY)),
        on=["collective", "meeting"],
        how="left",
        maintain_order="left",
    ).select(pl.col("issue").fill_null(0))
    return (
        pl.concat([every, parts, places, issue], how="horizontal")
        .select(list(MEETINGS))
        .cast(MEETINGS)
    )


def _computing(trace: Trace) -> pl.DataFrame:
    """Return the rank's compute spans: on the GPU, or on the host where it has none."""
    work = busiest_device(trace.kernels)
    if work.height:
        return spans(work.filter(pl.col("kind") != "communication"))
    return host_compute(trace)


def _issue(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the host's own time from one launch to the next: ``issue``."""
    ordered = rows.drop_nulls("launched").sort("launched")
    waits = _merged(pl.concat([spans(blocking_calls(trace)), _held_hosts(trace, rows)]))
    awake = ordered["launched"] - covered_until(waits, ordered["launched"])
    return ordered.select("collective", issue=awake.diff().fill_null(0))


def _held_hosts(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the spans without launches up to the end of what held the rank.

    Some waits are no recorded calls, as those of an allocator that is out of memory.
    """
    held = rows.drop_nulls("held").select("held", "end")
    calls = (
        trace.runtime.filter((pl.col("kernels") > 0) | (pl.col("call") == "allocation"))
        .select(called="ts", returned=END)
        .sort("called")
    )
    calls = calls.with_columns(pl.col("returned").cum_max())
    last = asof(held, calls, "end", "called")
    since = pl.max_horizontal("held", "returned")
    return last.select(start=since, end="end").filter(pl.col("end") > pl.col("start"))


def _stalls(trace: Trace) -> pl.DataFrame:
    """Return the stalls: first queued work of a stream that the GPU did not begin."""
    work = busiest_device(trace.kernels)
    before = END.cum_max().shift(1).over("stream")
    queued = work.sort("ts").select(
        start=pl.max_horizontal(
            trace.runtime["ts"].gather(work.sort("ts")["launch"])
            + LONGEST_LAUNCH_LATENCY_NS,
            before,
        ),
        end="ts",
        kind="kind",
    )
    long = pl.col("end") - pl.col("start") > LONGEST_LAUNCH_LATENCY_NS
    compute = pl.col("kind") != "communication"
    return queued.filter(compute, long).select("start", "end")


def _parts(trace: Trace, held: pl.DataFrame, at: pl.Series) -> pl.DataFrame:
    """Return the time before each meeting, split into parts."""
    layers = {
        COMPUTE: _computing(trace),
        STALLED: _stalls(trace),
        DATA: host_spans(trace, [LOADING]),
        ALLOCATION: host_spans(trace, [ALLOCATING]),
        SYNC: host_spans(trace, [WAITING]),
    }
    cover = held
    reached = covered_until(cover, at)
    parts = {}
    for name, layer in layers.items():
        cover = _merged(pl.concat([cover, layer]))
        further = covered_until(cover, at)
        parts[name] = (further - reached).diff()
        reached = further
    parts[HOST] = (at - reached).diff()
    return pl.DataFrame(parts).fill_null(0)


def _merged(parts: pl.DataFrame) -> pl.DataFrame:
    return disjoint(parts).filter(pl.col("end") > pl.col("start"))


def _places(trace: Trace, held: pl.DataFrame, at: pl.Series) -> pl.DataFrame:
    """Return the host's place in the longest idle gap before each meeting."""
    row = pl.int_range(len(at), dtype=pl.UInt32, eager=True)
    marks = pl.DataFrame({"start": at, "end": at})
    busy = pl.concat([held, _computing(trace), marks]).sort("start", "end")
    gaps = (
        busy.select(start=pl.col("end").cum_max().shift(1), end="start")
        .filter(pl.col("end") - pl.col("start") >= _LONG_GAP_NS)
        .with_columns(length=pl.col("end") - pl.col("start"))
    )
    ends = pl.DataFrame({"row": row, "at": at})
    longest = (
        asof(gaps, ends, "end", "at", strategy="forward")
        .drop_nulls("row")
        .sort("length", descending=True)
        .unique("row", keep="first", maintain_order=True)
        .head(_MOST_PLACES)
        .with_columns(ts=pl.col("start") + pl.col("length") // 2)
    )
    longest = longest.with_columns(thread=_threads(trace, longest["end"]))
    regions = trace.annotations.filter(
        ~pl.col("on_gpu"), ~text("name").str.contains(REGION)
    )
    frames = trace.frames.filter("own")
    around = pl.concat(
        [
            longest.select("row"),
            innermost(regions, longest).select(region=text("name")),
            innermost(frames, longest).select(
                text("file"), pl.col("line").cast(pl.Int64), text("function")
            ),
        ],
        how="horizontal",
    )
    return (
        row.to_frame("row")
        .join(around, on="row", how="left", maintain_order="left")
        .drop("row")
    )


def _threads(trace: Trace, moments: pl.Series) -> pl.Series:
    """Return the threads that launched what ended the gaps."""
    launches = trace.kernels.select(
        begins="ts", thread=trace.runtime["thread"].gather(trace.kernels["launch"])
    ).drop_nulls()
    joined = asof(
        moments.to_frame("at").with_row_index("gap"),
        launches,
        "at",
        "begins",
        strategy="forward",
    ).sort("gap")["thread"]
    usual = launches["thread"].mode().sort()
    if not len(usual):
        usual = trace.host_ops["thread"].mode().sort()
    return joined.fill_null(usual.first() if len(usual) else 0)
