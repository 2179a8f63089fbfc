"""Advice on collectives that the GPU waits for, and how much they send."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.patterns.host_collectives import (
    serves_collective,
)
from traceq.linter import Evidence, View

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

# Part of the collective's name, and how to overlap it with compute.
_ADVICE = (
    (
        "reduce_?scatter",
        "reduce a layer's gradients while the backward of the next runs: with FSDP,"
        " wrap each layer with fully_shard; with several micro-batches a step,"
        " set_requires_gradient_sync(False) on all but the last; in code of your own,"
        " async_op=True and a later wait()",
    ),
    (
        "reduce",
        "start it earlier and wait for it later: with DDP, a smaller bucket_cap_mb and"
        " gradient_as_bucket_view=True; in code of your own, async_op=True and wait()"
        " only where the result is used; with several micro-batches a step, no_sync()"
        " on all but the last",
    ),
    (
        "gather",
        "fetch the next layer's weights while this one computes: FSDP's"
        " forward_prefetch=True and backward_prefetch=BACKWARD_PRE, or"
        " fully_shard's set_modules_to_forward_prefetch; in code of your own,"
        " async_op=True and a later wait()",
    ),
    (
        "all_?to_?all|send|recv",
        "split the batch in two and compute one half while the other is sent:"
        " async_op=True, and wait() only where the result is used",
    ),
)
TENSOR_PARALLEL = (
    "these are a layer's activations, which the next op needs, so there is nothing to"
    " start earlier: fix a late rank first; sequence parallelism makes an all-reduce a"
    " reduce-scatter and an all-gather of a part each, and AsyncTP"
    " (torch._inductor.config._micro_pipeline_tp) overlaps these with their matmuls; a"
    " smaller tensor-parallel group sends less"
)
_SLOW = (
    "slow for GPUs of one machine: part of it is likely a wait for other ranks, which"
    " only the traces of all ranks can show"
)
_UNSIZED = "message sizes were not recorded, so part of the time may be a wait"
_OTHER = "start it with async_op=True, and wait() only where the result is used"


def syncs(view: View) -> pl.Series:
    """Return the calls in which threads of collectives wait for their copies."""
    calls = view.runtime.filter(pl.col("call") == "sync")
    return calls["id"].filter(serves_collective(view.trace, calls))


def sent(row: Mapping[str, Any]) -> Iterator[Evidence]:
    """Yield what the collective sends, how fast, and what is unclear about it."""
    if row["bytes"]:
        rate, each = row["bytes"] / row["time"], row["bytes"] / row["kernels"]
        yield Evidence("sent", value=each, unit="bytes", note="each, estimated")
        yield Evidence("rate", value=rate, note="GB/s")
    if row["unsized"]:
        yield Evidence("note", _UNSIZED)
    elif row["bytes"] < assumptions.SLOW_MACHINE_LINK * row["time"]:
        yield Evidence("note", _SLOW)


def advice_for(collective: str, *, tensor_parallel: bool = False) -> str:
    if tensor_parallel:
        return TENSOR_PARALLEL
    return next(
        (advice for part, advice in _ADVICE if re.search(part, collective)), _OTHER
    )
