"""Availability of the user's source lines, from any source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import LINES_KNOWN
from traceq.analysis.base.cached import cached_per_trace

if TYPE_CHECKING:
    from traceq.model.trace import Trace


@cached_per_trace
def has_source_lines(trace: Trace) -> bool:
    """Return whether nearly all of the work has a source location.

    Stacks tell it, and without them the code that torch.compile generated, the capture
    of a CUDA graph, or the trace itself. Without a GPU it is the outermost ops' time.
    """
    if trace.facts.stacks:
        return True
    ran = trace.kernels
    if ran.is_empty():
        ran = trace.ops.filter(pl.col("parent").is_null())
    has_place = pl.col("file").is_not_null() | pl.col("via").is_not_null()
    total, located = (int(rows["dur"].sum()) for rows in (ran, ran.filter(has_place)))
    return total > 0 and located >= LINES_KNOWN * total
