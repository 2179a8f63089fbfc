"""Collectives: what they send, and how long the GPU does nothing else meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.graph.devices import busiest_device
from traceq.graph.nesting import nearest
from traceq.intervals import disjoint, overlap, spans
from traceq.model.dtypes import SHORT_SIZES

if TYPE_CHECKING:
    from traceq.trace import Trace

# Every kernel takes this long to start and to agree with the others.
_LATENCY = 100_000
# Where nothing is computed on the way, NCCL calls everything int8: that is no type.
_UNKNOWN_BYTES = 4
_OP = r"^c10d::_*(\w+?)_*$"
_KERNEL = r"(?:nccl|rccl)(?:Dev)?Kernel_([A-Za-z]+)"
_PLACE = ("file", "line", "function")


def exposed_by_collective(
    trace: Trace, kernels: pl.DataFrame, slowest_link: float
) -> pl.DataFrame:
    """Return how long collectives run while the GPU computes nothing, longest first.

    Collectives of one name, over as many ranks, from one place are one row. Of that
    time, ``waiting`` is what remains when everything was sent at the rate of the
    ``slowest_link`` (GB/s), and ``exposed`` is the rest; in ``waiting_blocked`` and
    ``blocked`` of these a call of the host waits for the GPU. Of kernels that do not
    say what they send (``unsized`` counts them) nothing is taken to wait.
    """
    if not (kernels["kind"] == "communication").any():
        return pl.DataFrame(schema={"exposed": pl.Int64, "waiting": pl.Int64})
    found = busiest_device(kernels)
    sends = pl.col("kind") == "communication"
    compute = spans(found.filter(~sends, pl.col("activity") == "kernel"))
    blocks = spans(trace.runtime.filter(pl.col("call").is_in(["sync", "copy"])))
    mine = disjoint(
        _described(trace, found.filter(sends)).with_columns(
            start="ts", end=pl.col("ts") + pl.col("dur")
        )
    )
    hidden = overlap(mine, compute)
    alone = mine["end"] - mine["start"] - hidden
    blocked = overlap(mine, pl.concat([compute, blocks])) - hidden
    return (
        mine.with_columns(
            alone=alone,
            blocked=blocked,
            waiting=pl.min_horizontal(alone, _surely_waiting(slowest_link)),
        )
        .with_columns(
            exposed=pl.col("alone") - pl.col("waiting"),
            waiting_blocked=pl.min_horizontal("waiting", "blocked"),
        )
        .sort("dur", "id", descending=[True, False])
        .group_by("collective", "group_size", *_PLACE)
        .agg(
            pl.col("name", "op_name", "module").first(),
            pl.col("exposed", "waiting", "waiting_blocked").sum(),
            pl.col("bytes").sum(),
            blocked=(pl.col("blocked") - pl.col("waiting_blocked")).sum(),
            longest=pl.col("dur").max(),
            time=pl.col("dur").sum(),
            kernels=pl.len(),
            unsized=pl.col("bytes").null_count(),
            ids="id",
        )
        .with_columns(pl.col("name").cast(pl.String))
        .sort(
            pl.col("exposed") + pl.col("waiting"),
            "collective",
            "group_size",
            *_PLACE,
            descending=[True, *[False] * 5],
        )
    )


def _described(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Add to kernels the names of their collectives and ops, and what they send."""
    names = trace.ops["name"].unique()
    of_torch = names.filter(names.cast(pl.String).str.starts_with("c10d::"))
    found = trace.ops["name"].is_in(of_torch.implode()).fill_null(value=False)
    around = nearest(trace.ops["parent"], found).gather(kernels["op"])
    op_name = trace.ops["name"].gather(around).cast(pl.String)
    by_op, by_name = op_name.str.extract(_OP), kernels["name"].cast(pl.String)
    width = pl.col("dtype").cast(pl.String).replace_strict(SHORT_SIZES, default=None)
    return kernels.with_columns(
        op_name=op_name,
        collective=pl.coalesce(
            pl.col("collective").cast(pl.String).str.strip_chars("_"),
            by_op,
            by_name.str.extract(_KERNEL).str.to_lowercase(),
            pl.lit("a collective"),
        ).str.replace(r"_base$", ""),
        bytes=pl.col("elements") * width.fill_null(_UNKNOWN_BYTES),
    )


def _surely_waiting(slowest_link: float) -> pl.Expr:
    """Return how much longer each kernel runs than sending takes on a slow link."""
    name, ranks = pl.col("collective"), pl.col("group_size").fill_null(1)
    times_sent = (
        pl.when(name.str.contains("all_?reduce"))
        .then(2)
        .when(name.str.contains("gather"))
        .then(ranks - 1)
        .otherwise(1)
    )
    needed = _LATENCY + pl.col("bytes") * times_sent / slowest_link
    return (pl.col("dur") - needed).clip(lower_bound=0).fill_null(0).cast(pl.Int64)
