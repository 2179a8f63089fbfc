"""Which kernels are attention's, whoever wrote it: fused, SDPA's own, or by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import outermost_ops, owned
from traceq.analysis.patterns.attention import SDPA
from traceq.analysis.patterns.attention_handwritten import handwritten_attention

if TYPE_CHECKING:
    from traceq.trace import Trace

ATTENTION = "attention"


def kernels_by_part(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels with their ``part`` of a step.

    That is their kind, but for those between the matmuls of attention, and these
    matmuls themselves: whatever runs in attention, forward and backward, is attention.
    """
    by_hand = handwritten_attention(trace, kernels)["kernels"].explode()
    of_sdpa = owned(trace, kernels, outermost_ops(trace, (SDPA,)))["id"]
    of_attention = pl.concat([by_hand.cast(of_sdpa.dtype), of_sdpa])
    return kernels.with_columns(
        part=pl.when(pl.col("id").is_in(of_attention.implode()))
        .then(pl.lit(ATTENTION))
        .otherwise(pl.col("kind").cast(pl.String))
    )
