"""Timeline of one step: GPU streams, host threads and the causes of idle time.

A step may have millions of slices, and a picture has a few thousand pixels. So slices
that are too short to be seen become runs: those that begin in the same interval, at the
same depth, are one. The limit follows from the number of slices that fit, so that a
small step is complete and can be zoomed into.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.steady import steady_steps
from traceq.analysis.time.gpu_causes import gpu_causes
from traceq.analysis.time.idle_causes import idle_stretches
from traceq.common.expressions import END, text
from traceq.graph.nesting import depth, parents
from traceq.graph.steps import cut_off
from traceq.model.names import MODULE, STEP

if TYPE_CHECKING:
    from traceq.model.trace import Trace

KERNELS, OPS, CALLS, REGIONS, FRAMES = TABLES = (
    "kernels",
    "ops",
    "runtime",
    "annotations",
    "frames",
)
"""The tables that slices are of."""
# From the outside in, where two begin and end together.
_ON_HOST = (REGIONS, FRAMES, OPS, CALLS)
_TABLE = pl.Enum(TABLES)
_MOST_STREAMS, _MOST_THREADS = 12, 10
_MOST_DEPTH = 24
# Nothing is shorter on the widest screen at 32 times its size.
_FINEST = 1 << 16
_SOURCE = ("module", "file", "line", "function", "call_line")


@dataclass(frozen=True)
class Timeline:
    """The events of one step, or of a trace without steps."""

    step: int | None
    start: int
    end: int
    lanes: pl.DataFrame
    """``lane`` (its number, the GPU's first), ``gpu``, ``name``, ``device`` and
    ``stream`` of the GPU's, ``thread`` of the host's, and its ``busy`` time."""
    slices: pl.DataFrame
    """By lane and depth, in order: ``lane``, ``depth``, ``start``, ``end``, ``count``
    (more than 1 for a run), ``busy`` (the time of all in it), and of the longest one
    the ``table`` and ``row``."""
    gaps: pl.DataFrame
    """Idle gaps of the GPU: ``start``, ``end`` and ``cause``, of idle_causes."""
    shortest: int
    """Slices that take less than this many nanoseconds became runs; 0 if none did."""
    left_out: int
    """Number of less busy lanes that are not shown."""


def typical_step(trace: Trace) -> int | None:
    """Return the steady-state step whose time is nearest to the median; none without.

    Of several it is the first.
    """
    steady = trace.steps.filter(~pl.col("warmup"), ~cut_off(trace.steps))
    if not steady.height:
        return None
    away = (pl.col("time") - pl.col("time").median()).abs()
    return int(steady.sort(away, "step")["step"][0])


def timeline(trace: Trace, step: int | None = None, most: int = 16_000) -> Timeline:
    """Return one step, in about this many slices at most.

    The window begins with the step on the host, where that is at most the length of
    the step ahead of the GPU.
    """
    start, end = _window(trace, step)
    lanes, events, left_out = _lanes(trace, start, end)
    runs, shortest = _merged(events, start, end, most)
    return Timeline(
        step=step,
        start=start,
        end=end,
        lanes=lanes,
        slices=runs,
        gaps=idle_stretches(trace, start, end),
        shortest=shortest,
        left_out=left_out,
    )


def _window(trace: Trace, step: int | None) -> tuple[int, int]:
    if step is None:
        windows = steady_steps(trace).windows
        return int(windows["start"][0]), int(windows["end"][-1])
    row = trace.steps.row(by_predicate=pl.col("step") == step, named=True)
    start, end = row["start"], row["end"]
    return max(min(row["ts"], start), start - (end - start)), end


def _lanes(
    trace: Trace, start: int, end: int
) -> tuple[pl.DataFrame, pl.DataFrame, int]:
    """Return the lanes, their events with depth, and how many lanes are left out."""
    inside = (pl.col("ts") < end) & (start < END)
    kernels = trace.kernels.filter(inside)
    streams = (
        kernels.group_by("device", "stream")
        .agg(busy=pl.col("dur").sum())
        .sort("device", "busy", "stream", descending=[False, True, False])
    )
    on_gpu = streams.head(_MOST_STREAMS).with_columns(
        lane=pl.int_range(pl.len(), dtype=pl.UInt32), gpu=pl.lit(value=True)
    )
    host = _on_host(trace, inside)
    threads = (
        host.group_by("thread")
        .agg(busy=(pl.col("end") - pl.col("start")).filter(pl.col("depth") == 0).sum())
        .sort("busy", "thread", descending=[True, False])
    )
    on_host = threads.head(_MOST_THREADS).with_columns(
        lane=pl.int_range(pl.len(), dtype=pl.UInt32) + on_gpu.height,
        gpu=pl.lit(value=False),
    )
    of_gpu = kernels.select("device", "stream", row="id", start="ts", end=END).join(
        on_gpu.select("device", "stream", "lane"), on=["device", "stream"]
    )
    events = pl.concat(
        [
            of_gpu.select(
                "lane",
                pl.lit(0, pl.UInt32).alias("depth"),
                "start",
                "end",
                pl.lit(KERNELS, _TABLE).alias("table"),
                "row",
            ),
            host.join(on_host.select("thread", "lane"), on="thread").select(
                "lane", "depth", "start", "end", "table", "row"
            ),
        ]
    ).filter(pl.col("depth") < _MOST_DEPTH)
    lanes = pl.concat([on_gpu, on_host], how="diagonal_relaxed").select(
        "lane", "gpu", _name(trace), "device", "stream", "thread", "busy"
    )
    left_out = streams.height + threads.height - lanes.height
    return lanes, events, left_out


def _name(trace: Trace) -> pl.Expr:
    """Return the name of a lane: its stream, or its thread."""
    threads = trace.threads.select(
        "id", name=pl.coalesce("name", pl.format("thread {}", "tid"))
    )
    named = pl.col("thread").replace_strict(
        threads["id"], threads["name"], default=None, return_dtype=pl.String
    )
    several = trace.kernels["device"].n_unique() > 1
    stream = pl.format(
        "GPU {} stream {}" if several else "stream {}",
        *(["device", "stream"] if several else ["stream"]),
    )
    return pl.when("gpu").then(stream).otherwise(named).fill_null("?").alias("name")


def _on_host(trace: Trace, inside: pl.Expr) -> pl.DataFrame:
    """Return the events of the host's threads with their depth, in pre-order.

    Of Python that is the user's own functions, and modules.
    """
    module = text("name").str.contains(MODULE)
    step = text("name").str.contains(STEP)
    chosen = {
        REGIONS: trace.annotations.filter(inside, ~pl.col("on_gpu")).filter(~step),
        FRAMES: trace.frames.filter(inside).filter(pl.col("own") | module),
        OPS: trace.host_ops.filter(inside),
        CALLS: trace.runtime.filter(inside),
    }
    rows = pl.concat(
        table.select(
            "thread",
            pl.lit(name, _TABLE).alias("table"),
            row="id",
            start="ts",
            end=END,
            part=pl.lit(part, pl.UInt8),
        )
        for part, (name, table) in enumerate(chosen.items())
    ).sort("thread", "start", -pl.col("end"), "part", maintain_order=True)
    return rows.with_columns(depth=depth(parents(rows["thread"], rows["end"])))


def _merged(
    events: pl.DataFrame, start: int, end: int, most: int
) -> tuple[pl.DataFrame, int]:
    """Return the slices, those that are too short as runs, and how short that is."""
    events = events.sort("lane", "depth", "start", maintain_order=True)
    shortest = 0
    if events.height > most:
        shortest = max(1, (end - start) // _FINEST)
        while _count(events, start, shortest) > most and shortest < end - start:
            shortest *= 2
    length = pl.col("end") - pl.col("start")
    merged = (
        events.with_columns(bin=_bins(start, shortest))
        .group_by("lane", "depth", "bin", maintain_order=True)
        .agg(
            pl.col("start").min(),
            pl.col("end").max(),
            pl.col("table", "row").get(length.arg_max()),
            count=pl.len(),
            busy=length.sum(),
        )
        .sort("lane", "depth", "start", maintain_order=True)
    )
    return merged.drop("bin"), shortest


def _bins(start: int, shortest: int) -> pl.Expr:
    """Return the bin of each slice: short ones by their start, others alone."""
    short = pl.col("end") - pl.col("start") < shortest
    alone = -1 - pl.int_range(pl.len(), dtype=pl.Int64)
    return (
        pl.when(short)
        .then((pl.col("start") - start) // max(1, shortest))
        .otherwise(alone)
    )


def _count(events: pl.DataFrame, start: int, shortest: int) -> int:
    """Return the number of slices if the shorter ones become runs."""
    return events.select("lane", "depth", bin=_bins(start, shortest)).n_unique()


def described(trace: Trace, slices: pl.DataFrame) -> pl.DataFrame:
    """Return slices of a timeline with what there is to know of them.

    ``name``, ``cause`` (of the GPU's, else null), ``call`` (of runtime calls),
    ``compiling`` (of ops), ``op``, ``module``, ``file``, ``line``, ``function``,
    ``call_line`` and ``inputs``, the row of the table of inputs.
    """
    numbered = slices.with_row_index("at")
    ops = trace.ops.select(op_row="id", op=text("name"), inputs="inputs")
    parts = []
    for name in TABLES:
        rows = numbered.filter(pl.col("table") == name)
        if not rows.height:
            continue
        table = trace.table(name)[rows["row"]]
        columns = {"name": table["name"].cast(pl.String)}
        columns |= {
            column: table[column].cast(pl.String)
            if column in ("module", "file", "function")
            else table[column]
            for column in _SOURCE
            if column in table.columns
        }
        if name == KERNELS:
            columns["cause"] = gpu_causes(trace, rows["row"])
        if name == CALLS:
            columns["call"] = table["call"].cast(pl.String)
        if name == OPS:
            columns["op_row"] = table["id"]
            columns["compiling"] = table["compiling"]
        elif "op" in table.columns:
            columns["op_row"] = table["op"]
        parts.append(pl.DataFrame({"at": rows["at"], **columns}))
    if not parts:
        return slices
    facts = pl.concat(parts, how="diagonal_relaxed")
    if "op_row" in facts.columns:
        facts = facts.join(ops, on="op_row", how="left", maintain_order="left")
    return numbered.join(facts, on="at", how="left", maintain_order="left").drop("at")
