"""Calls in which the host waits for the GPU, and how long the GPU idles after them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.gpu_idle import gap_at, idle_gaps
from traceq.analysis.base.steady import in_steps
from traceq.analysis.patterns.compilation import captures
from traceq.graph.nesting import nearest
from traceq.model.names import BLOCKING_COPY, DTOH, HTOD, PAGEABLE

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.trace import Trace

_METHOD = r"^<built-in (?:method|function) (\w+)"
_PRINTING = r"torch/_tensor_str\.py\(\d+\): _str$"


def waits_in_ops(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the innermost ops in which the host waits for the GPU.

    These are rows of runtime calls, one for each op: ``wait`` is the time in its calls
    that wait, ``gap`` how long the GPU idles then, ``copies`` says ``to host`` or ``to
    GPU`` if the op copies. Left out are waits while compiling or recording CUDA graphs,
    and those of the allocator.
    """
    calls = in_steps(trace.runtime.filter(pl.col("op").is_not_null()), trace, steady)
    copies = _copies(trace)
    calls = calls.join(copies, left_on="id", right_on="launch", how="left")
    name = pl.col("name").cast(pl.String)
    blocks = (pl.col("call") == "sync") | (
        (pl.col("call") == "copy")
        & ((pl.col("copies") == "to host") & name.str.contains(BLOCKING_COPY))
        | pl.col("pageable").fill_null(value=False)
    )
    waiting = calls.filter(blocks)
    direction = calls.drop_nulls("copies").group_by("op").agg(pl.col("copies").first())
    place = ("step", "thread", "file", "line", "function", "module")
    found = (
        waiting.sort("ts")
        .group_by("op", maintain_order=True)
        .agg(
            pl.col("ts").first(),
            pl.col(place).first(),
            wait=pl.col("dur").sum(),
            end=(pl.col("ts") + pl.col("dur")).max(),
            waits=(pl.col("call") == "sync").any(),
        )
        .join(direction, on="op", how="left", maintain_order="left")
    )
    return _with_gap(trace, found.join(_not_ours(trace, steady), on="op", how="anti"))


def waits_outside(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the calls outside of ops in which a thread that launches work waits.

    Not the one with which the profiler ends: nothing is launched after it.
    """
    last = trace.runtime.filter(pl.col("kernels") > 0).select(
        pl.col("ts").max().over("thread").alias("last"), "thread"
    )
    calls = trace.runtime.filter(pl.col("call") == "sync", pl.col("op").is_null())
    found = (
        in_steps(calls, trace, steady)
        .join(last.unique(), on="thread")
        .filter(pl.col("ts") < pl.col("last"))
        .drop("last")
        .with_columns(wait="dur", end=pl.col("ts") + pl.col("dur"))
        .sort("ts")
    )
    return _with_gap(trace, found)


def written_as(trace: Trace, waits: pl.DataFrame) -> pl.Series:
    """Return the method that Python called for each wait, as ``tolist``, if known.

    It is ``print`` for all that writing out a tensor does.
    """
    names = trace.frames["name"].unique()
    text = names.cast(pl.String)
    method = text.str.extract(_METHOD)
    known = pl.DataFrame(
        {
            "name": names,
            "method": pl.select(
                pl.when(text.str.contains(_PRINTING))
                .then(pl.lit("print"))
                .otherwise(method)
            ).to_series(),
        }
    ).drop_nulls("method")
    frames = trace.frames.join(known, on="name").select(
        "thread", "ts", "method", until=pl.col("ts") + pl.col("dur")
    )
    printing = pl.col("method") == "print"
    found = waits.select("ts", "end", "thread").with_row_index("row").sort("ts")
    for part in (frames.filter(printing), frames.filter(~printing)):
        found = found.join_asof(
            part.sort("ts"),
            on="ts",
            by="thread",
            strategy="backward",
            check_sortedness=False,
            suffix="_inner",
        )
    return (
        found.sort("row")
        .select(
            pl.coalesce(
                pl.when(pl.col(f"until{one}") >= pl.col("end")).then(f"method{one}")
                for one in ("", "_inner")
            )
        )
        .to_series()
    )


def _copies(trace: Trace) -> pl.DataFrame:
    name = pl.col("name").cast(pl.String)
    return (
        trace.kernels.filter(pl.col("activity") == "memcpy")
        .select(
            "launch",
            copies=pl.when(name.str.contains(DTOH))
            .then(pl.lit("to host"))
            .when(name.str.contains(HTOD))
            .then(pl.lit("to GPU")),
            pageable=name.str.contains(DTOH) & name.str.contains(PAGEABLE),
        )
        .drop_nulls("launch")
        .unique("launch", keep="first", maintain_order=True)
    )


def _not_ours(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the ops whose waits belong to something else: ``op``."""
    ops = trace.ops
    captured = captures(trace, steady)["id"]
    around = nearest(ops["parent"], ops["id"].is_in(captured.implode()))
    other = ops.filter(around.is_not_null() | ops["compiling"]).select(op="id")
    allocating = trace.runtime.filter(
        pl.col("call") == "allocation", pl.col("op").is_not_null()
    )
    return pl.concat([other, allocating.select("op")]).unique()


def _with_gap(trace: Trace, found: pl.DataFrame) -> pl.DataFrame:
    """Add how long the GPU idles from a wait on; of several waits the first counts."""
    idle = idle_gaps(trace)
    at = gap_at(idle, found["end"])
    gap = (
        idle["end"].gather(at)
        - pl.select(
            pl.max_horizontal(idle["start"].gather(at), found["ts"])
        ).to_series()
    )
    first = at.is_first_distinct() & at.is_not_null()
    return found.with_columns(
        gap=pl.select(pl.when(first).then(gap).otherwise(0)).to_series()
    )
