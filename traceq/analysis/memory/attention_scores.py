"""Attention scores among the allocations of a snapshot, as its trace tells them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.memory.trace_allocations import same_file
from traceq.analysis.patterns.attention_handwritten import handwritten_attention

if TYPE_CHECKING:
    from traceq.trace import Trace

# In 32 and 16 bits; a mask of dropout has a byte for each.
_BYTES = (4, 2, 1)


def scores_in_trace(allocations: pl.DataFrame, trace: Trace) -> pl.Series:
    """Return the ``alloc`` of those that are scores of attention written by hand.

    They have as many elements as what softmax is given in the trace, and come from the
    same function. It is for stacks that name no operators.
    """
    elements = pl.col("scores").list.eval(pl.element().product()).list.first()
    written = (
        handwritten_attention(trace, trace.kernels)
        .drop_nulls("file")
        .select(
            pl.col("function").cast(pl.String),
            begins=pl.col("line").cast(pl.Int64),
            trace_file=pl.col("file").cast(pl.String),
            elements=elements,
        )
        .unique()
    )
    text = pl.col("file", "function").cast(pl.String)
    return (
        allocations.filter(pl.col("op").is_null())
        .select("alloc", "size", "line", text)
        .drop_nulls()
        .join(written, on="function")
        .filter(
            pl.col("line") >= pl.col("begins"),
            same_file(pl.col("file"), pl.col("trace_file")),
            pl.any_horizontal(
                pl.col("size") == pl.col("elements") * width for width in _BYTES
            ),
        )["alloc"]
        .unique()
    )
