"""Attention kernels, whatever their implementation: fused, SDPA's math, handwritten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import outermost_ops, owned
from traceq.analysis.patterns.attention import SDPA
from traceq.analysis.patterns.attention_handwritten import (
    handwritten_softmaxes,
    within_handwritten,
    writes_attention,
)
from traceq.common.expressions import text

if TYPE_CHECKING:
    from traceq.model.trace import Trace

ATTENTION = "attention"


@dataclass(frozen=True)
class AttentionParts:
    """GPU time of attention in several kernels, in ns of all steps."""

    softmax_ns: int
    matmul_ns: int
    forward: tuple[int, int]
    """The same of the forward alone."""

    @property
    def ratio(self) -> float:
        """Ratio of the softmax's time to the matmuls' time."""
        return self.softmax_ns / self.matmul_ns


def softmax_and_matmuls(trace: Trace, kernels: pl.DataFrame) -> AttentionParts | None:
    """Return the time of the softmax and of the matmuls of attention.

    None where attention is fused, and where there is none. A softmax that is written by
    hand too is all kernels from its largest scores to the division by the sum.
    """
    by_hand = handwritten_softmaxes(trace, kernels) if writes_attention(trace) else None
    if by_hand is not None and len(by_hand):
        own = pl.col("id").is_in(by_hand.implode())
        kind = pl.when(own).then(pl.lit("softmax")).otherwise(pl.col("kind"))
        kernels = kernels.with_columns(kind=kind)
    if not (kernels["kind"] == "softmax").any():
        return None
    times = {
        (kind, phase == "forward"): 0
        for kind in ("softmax", "gemm")
        for phase in ("forward", "backward")
    }
    attention = kernels_by_part(trace, kernels).filter(pl.col("part") == ATTENTION)
    by = attention.group_by("kind", forward=text("phase") == "forward").agg(
        pl.col("dur").sum()
    )
    times |= {(kind, forward): dur for kind, forward, dur in by.iter_rows()}
    softmax, matmul = (
        times[kind, True] + times[kind, False] for kind in ("softmax", "gemm")
    )
    if not softmax or not matmul:
        return None
    return AttentionParts(
        softmax, matmul, (times["softmax", True], times["gemm", True])
    )


def kernels_by_part(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels with their ``part`` of a step.

    That is their kind, but for those between the matmuls of attention, and these
    matmuls themselves: whatever runs in attention, forward and backward, is attention.
    """
    ran = kernels[["id", "op"]]
    of_attention = owned(trace, ran, outermost_ops(trace, (SDPA,)))["id"]
    if writes_attention(trace):
        by_hand = within_handwritten(trace, kernels)
        of_attention = pl.concat([by_hand.cast(of_attention.dtype), of_attention])
    return kernels.with_columns(
        part=pl.when(pl.col("id").is_in(of_attention.implode()))
        .then(pl.lit(ATTENTION))
        .otherwise(pl.col("kind").cast(pl.String))
    )
