"""Short labels for the GPU's work, as charts and bars use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import named_like
from traceq.model.names import TRANSFER

if TYPE_CHECKING:
    from traceq.model.trace import Trace

# By the kinds of its kernels; a copy to or from the host is its own.
_COMPUTING = ("gemm", "attention", "conv")
# What is not known is not taken to move memory.
_UNKNOWN = ("unknown", "other")
COMPUTING = "computing"
MOVING = "moving memory"
COMMUNICATING = "communicating"
COPYING = "copying to or from the host"
UNKNOWN = "unknown kernels"
BETWEEN = "between kernels"
ON_GPU = (COMPUTING, MOVING, COMMUNICATING, COPYING, UNKNOWN, BETWEEN)


def gpu_causes(trace: Trace, kernels: pl.Series) -> pl.Series:
    """Return the label of each kernel's work, by kernel id; never BETWEEN."""
    kind = trace.kernels["kind"][kernels]
    cause = (
        pl.when(named_like(trace.kernels, TRANSFER)[kernels])
        .then(pl.lit(COPYING))
        .when(kind == "communication")
        .then(pl.lit(COMMUNICATING))
        .when(kind.is_in(_COMPUTING))
        .then(pl.lit(COMPUTING))
        .when(kind.is_in(_UNKNOWN))
        .then(pl.lit(UNKNOWN))
        .otherwise(pl.lit(MOVING))
    )
    return pl.select(cause.alias("cause")).to_series()
