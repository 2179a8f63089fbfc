"""Launches: the call and the op that started each piece of GPU work."""

from __future__ import annotations

import polars as pl

from traceq.common.expressions import rows_of
from traceq.graph.source import places
from traceq.model import schema
from traceq.model.names import BEGIN_CAPTURE, END_CAPTURE

_CONVOLUTION = "conv"
# Kernels whose names say how they compute, not what for.
_PLAIN_KINDS = ("elementwise", "reduction", "memory", "fused", "unknown")

# A GPU that is free starts a kernel within 30 us of its launch in 60 public traces; the
# two that are cut out of a busy server show 8 and 149 ms. Heuristic threshold.
_LONGEST_START_NS = 1_000_000


def in_order(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return GPU work by start."""
    keys = ("ts", "stream", "correlation")
    order = kernels.select(pl.arg_sort_by(keys, maintain_order=True)).to_series()
    return rows_of(kernels, order)


def link(
    kernels: pl.DataFrame, runtime: pl.DataFrame, ops: pl.DataFrame
) -> pl.DataFrame:
    """Complete the table of GPU work: launches, ops, sources, and facts from names.

    ``kernels`` are in order.
    """
    calls = (
        runtime.lazy()
        .filter(pl.col("correlation").is_not_null())
        .select("correlation", launch="id")
        .unique("correlation", keep="first", maintain_order=True)
        .collect()
    )
    launch = kernels.select("correlation").join(
        calls, on="correlation", how="left", maintain_order="left"
    )["launch"]
    op = runtime["op"][launch]
    context = pl.select(
        pl.coalesce(runtime[column][launch], ops[column][op])
        for column in ("step", "phase")
    )
    place = places.first_with_place(
        places.gathered(runtime, launch), places.gathered(ops, op)
    )
    linked = kernels.with_columns(
        *context,
        launch=launch,
        op=op,
        certain=pl.lit(None, pl.Boolean),
        **places.columns(place),
    )
    return linked.with_columns(kind_in_context(ops, op))


def late_start(work: pl.DataFrame, runtime: pl.DataFrame) -> tuple[int, int]:
    """Return when the first work starts if that is late, and how long after its launch.

    The GPU was busy with work from before the recording then; else both are 0.
    """
    first = work["ts"].arg_min()
    launch = None if first is None else work["launch"][first]
    if first is None or launch is None:
        return 0, 0
    start = int(work["ts"][first])
    late = start - int(runtime["ts"][launch]) - int(runtime["dur"][launch])
    return (start, late) if late > _LONGEST_START_NS else (0, 0)


def outside_captures(runtime: pl.DataFrame) -> pl.DataFrame:
    """Return the launches that ran at once, without those captured in a CUDA graph.

    These are the calls that launch a kernel or a CUDA graph, whether or not the trace
    has what they ran; copies and sets are none.
    """
    launches = pl.col("call").is_in(["launch", "graph launch"])
    if not (runtime["call"] == "capture").any():
        return runtime.filter(launches)
    names = runtime["name"].unique().drop_nulls().cast(pl.String)
    begins, ends = (
        runtime["name"].is_in(names.filter(names.str.contains(pattern)).to_list())
        for pattern in (BEGIN_CAPTURE, END_CAPTURE)
    )
    opened = begins.cast(pl.Int32) - ends.cast(pl.Int32)
    captured = (
        runtime.select("thread", "ts", "id", opened=opened)
        .with_row_index("row")
        .sort("thread", "ts", "id")
        .filter(pl.col("opened").cum_sum().over("thread") > 0)
    )
    outside = pl.repeat(value=True, n=runtime.height, eager=True)
    return runtime.filter(launches, outside.scatter(captured["row"], values=False))


def kind_in_context(ops: pl.DataFrame, op: pl.Series) -> pl.Expr:
    """Return the kind of kernels, refined by their op and phase."""
    name = ops["name"][op].cast(pl.String)
    convolution = name.str.contains(_CONVOLUTION, literal=True)
    return (
        pl.when((pl.col("kind") == "gemm") & convolution)
        .then(pl.lit("conv", pl.Enum(schema.KINDS)))
        .when((pl.col("phase") == "optimizer") & pl.col("kind").is_in(_PLAIN_KINDS))
        .then(pl.lit("optimizer", pl.Enum(schema.KINDS)))
        .otherwise("kind")
        .alias("kind")
    )
