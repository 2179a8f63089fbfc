"""Attention scores among the allocations of a snapshot, by the run's trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns.attention_handwritten import (
    handwritten_attention,
    writes_attention,
)
from traceq.common.expressions import text

if TYPE_CHECKING:
    from traceq.model.trace import Trace

# Of an element: 32-bit, 16-bit, and a mask of dropout.
_BYTES = (4, 2, 1)


def scores_in_trace(places: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Return the places at which handwritten attention allocates its scores.

    Places are those of ``in_trace`` with a ``size``. Scores have as many elements as
    what softmax is given in the trace, and are made by the same function.
    """
    if not writes_attention(trace):
        return places.clear()
    elements = pl.col("scores").list.eval(pl.element().product()).list.first()
    written = (
        handwritten_attention(trace, trace.kernels)
        .drop_nulls("file")
        .select(
            text("function"),
            trace_file=text("file"),
            begins=pl.col("line").cast(pl.Int64),
            elements=elements,
        )
    )
    of_scores = pl.any_horizontal(
        pl.col("size") == pl.col("elements") * width for width in _BYTES
    )
    function = ["trace_file", "begins", "function"]
    with_scores = places.join(written, on=function).filter(of_scores)
    return places.filter(pl.col("key").is_in(with_scores["key"].implode()))
