"""Collectives: bytes sent, and the time in which the GPU computes nothing meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import COLLECTIVE_LATENCY_NS
from traceq.analysis.patterns.message_sizes import sent_by_ops
from traceq.common.expressions import END, known, text
from traceq.common.intervals import disjoint, overlap, spans
from traceq.graph.devices import busiest_device
from traceq.graph.nesting import nearest
from traceq.model.dtypes import SENT_SIZES, SHORT_HALF, SHORT_SIZES

if TYPE_CHECKING:
    from traceq.model.trace import Trace

# NCCL calls the dtype of all that it only sends int8, so that one is not known.
_UNKNOWN_BYTES = 4
_OP = r"^c10d::_*(\w+?)_*$"
# NCCL's and RCCL's; DeepEP's; all others by the operation in their names.
_KERNELS = (
    r"(?:nccl|rccl)(?:Dev)?Kernel_([A-Za-z]+)",
    r"(?:deep_ep|dpsk::ep)::\w+::(\w+)",
    r"(?i)(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce)",
)
# What process groups of tensor parallelism are called, as far as they are.
_TENSOR_PARALLEL = r"(?i)^tp|[^a-z]tp([^a-z]|$)|tensor"
_HALF = ("half", "bfloat16", "float16")
_PLACE = ("file", "line", "function")
# A transfer may take this many times as long as the fastest of its size.
_LIKELY_SENDING = 2


def exposed_by_collective(
    trace: Trace, kernels: pl.DataFrame, slowest_link: float
) -> pl.DataFrame:
    """Return the time of collectives without GPU compute, longest first.

    Collectives of one name, over the same number of ranks and from one place, are one
    row. ``waiting`` is the part of that time that remains after sending everything at
    the rate of the ``slowest_link`` (GB/s), and ``exposed`` is the rest. Kernels
    without a recorded message size (``unsized`` counts them) are not taken to wait.
    ``sending`` is the part of ``exposed`` that cannot be a wait for other ranks as far
    as one of them shows: none is longer than twice the shortest of the same size.
    """
    nothing = pl.DataFrame(schema={"exposed": pl.Int64, "waiting": pl.Int64})
    if not (kernels["kind"] == "communication").any():
        return nothing
    sends = pl.col("kind") == "communication"
    work = busiest_device(kernels)
    collectives = work.filter(sends).with_columns(start="ts", end=END)
    if not collectives.height:
        return nothing
    compute = spans(work.filter(~sends, pl.col("activity") == "kernel"))
    collectives = disjoint(described(trace, collectives))
    alone = collectives["end"] - collectives["start"] - overlap(collectives, compute)
    waiting = pl.min_horizontal(alone, _beyond_sending(slowest_link))
    shortest = pl.col("dur").min().over("collective", "group_size", "bytes")
    sized = pl.col("bytes").is_not_null()
    sending = pl.when(sized).then(
        pl.min_horizontal("exposed", _LIKELY_SENDING * shortest)
    )
    return (
        collectives.with_columns(waiting=waiting, exposed=alone - waiting)
        .with_columns(
            sending=sending.otherwise("exposed"), tensor_parallel=tensor_parallel()
        )
        .sort("dur", "id", descending=[True, False])
        .group_by("collective", "group_size", *_PLACE)
        .agg(
            pl.col("op_name", "module").first(),
            pl.col("exposed", "waiting", "sending", "bytes").sum(),
            longest=pl.col("dur").max(),
            time=pl.col("dur").sum(),
            kernels=pl.len(),
            unsized=pl.col("bytes").null_count(),
            ids="id",
            tensor_parallel=pl.col("tensor_parallel").mean() > 1 / 2,
        )
        .filter(pl.col("time") > 0)
        .sort(
            pl.col("exposed") + pl.col("waiting"),
            "collective",
            "group_size",
            *_PLACE,
            descending=[True, *[False] * 5],
        )
    )


def described(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Add to kernels of collectives their ``collective``, ``op_name`` and ``bytes``.

    ``recorded_bytes`` are those of NCCL metadata alone; ``tensor_dims`` is the number
    of dimensions of what is sent, where shapes were recorded.
    """
    names = trace.ops["name"].unique()
    of_torch = names.filter(names.cast(pl.String).str.starts_with("c10d::"))
    is_collective = known(trace.ops["name"].is_in(of_torch.implode()))
    around = nearest(trace.ops["parent"], is_collective)[kernels["op"]]
    op_name = trace.ops["name"][around].cast(pl.String)
    width = pl.coalesce(
        text("sent_dtype").str.to_lowercase().replace_strict(SENT_SIZES, default=None),
        text("dtype").replace_strict(SHORT_SIZES, default=None),
    )
    recorded = pl.col("elements") * width.fill_null(_UNKNOWN_BYTES)
    derived = sent_by_ops(trace, around, kernels["dtype"])
    return kernels.with_columns(
        op_name=op_name,
        op_phase=trace.ops["phase"][around].cast(pl.String),
        tensor_dims=derived["tensor_dims"],
        collective=pl.coalesce(
            text("collective").str.strip_chars("_"),
            op_name.str.extract(_OP),
            *(text("name").str.extract(name).str.to_lowercase() for name in _KERNELS),
            pl.lit("a collective"),
        ).str.replace(r"_base$", ""),
        recorded_bytes=recorded,
        bytes=pl.coalesce(recorded, derived["bytes"]),
    )


def tensor_parallel() -> pl.Expr:
    """Return which collectives are all-reduces of activations.

    Tensor parallelism reduces activations in 16 bits, of two dimensions or more, in the
    forward and in the backward. DDP reduces gradients, flat, and in the backward alone.
    """
    reduces = pl.col("collective").str.contains("all_?reduce")
    named = text("group_use").str.contains(_TENSOR_PARALLEL)
    half = text("sent_dtype").str.to_lowercase().is_in(_HALF) | text("dtype").is_in(
        SHORT_HALF
    )
    forward = (pl.col("op_phase") != "backward").any().over("collective", "bytes")
    shaped = known(half) & ~known(pl.col("tensor_dims") == 1) & forward
    return reduces & (known(named) | shaped)


def _beyond_sending(slowest_link: float) -> pl.Expr:
    """Return each kernel's time beyond that of sending over a slow link."""
    name, ranks = pl.col("collective"), pl.col("group_size").fill_null(1)
    times_sent = (
        pl.when(name.str.contains("all_?reduce"))
        .then(2)
        .when(name.str.contains("gather"))
        .then(ranks - 1)
        .otherwise(1)
    )
    needed = COLLECTIVE_LATENCY_NS + pl.col("bytes") * times_sent / slowest_link
    return (pl.col("dur") - needed).clip(lower_bound=0).fill_null(0).cast(pl.Int64)
