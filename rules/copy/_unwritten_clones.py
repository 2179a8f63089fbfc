"""Clones that nothing writes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import (
    END,
    asof,
    cached_per_trace,
    fill_false,
    named_like,
    nth,
    text,
)

from ._needless import PLACE

if TYPE_CHECKING:
    from traceq.linter import Trace

# Ops that write into their first input, as aten::add_.
_IN_PLACE = r"^aten::[a-z]\w*[a-z0-9]_(\.\w+)?$"


@cached_per_trace
def unwritten_clones(trace: Trace, moved: pl.DataFrame) -> pl.DataFrame:
    """Return the program's clones in the same layout, in functions that write nothing.

    A clone of a detached tensor is left out: it is meant to be kept.
    """
    clones = moved.filter(
        pl.col("part") == "layout",
        pl.col("asked") == "aten::clone",
        pl.col("src_strides") == pl.col("dst_strides"),
        pl.col("dst") == pl.col("src"),
        # Of the functions around captured ops it is not known what they write.
        ~fill_false(trace.ops["captured"][moved["op"]]),
    )
    if not clones.height:
        return clones
    ops, alone = trace.ops, trace.ops["parent"].is_null()
    writing = ops[[*PLACE, "thread", "ts", "inputs"]].filter(
        alone & named_like(ops, _IN_PLACE)
    )
    outermost = ops[["id", "name"]].filter(alone)
    before = outermost.select(request="id", before=text("name").shift(1))
    return (
        clones.join(writing.select(PLACE).unique(), on=PLACE, how="anti")
        .join(_written(trace, clones, writing), on=[*PLACE, "dims"], how="anti")
        .join(before, on="request", how="left", maintain_order="left")
        .filter(pl.col("before").is_null() | (pl.col("before") != "aten::detach"))
    )


def _written(trace: Trace, clones: pl.DataFrame, writing: pl.DataFrame) -> pl.DataFrame:
    """Return the places and shapes of clones that a called function may write to.

    That is: a tensor of the same shape is written to while the function runs.
    """
    places = clones.select(*PLACE, "dims").unique()
    dims = trace.inputs.select(inputs="id", dims=nth("dims", 0))
    writes = writing.select("thread", "ts", "inputs").join(dims, on="inputs")
    running = trace.frames.select(*PLACE, "thread", "ts", end=END)
    written = asof(
        writes.join(places, on="dims"),
        running.join(places, on=PLACE, how="semi"),
        "ts",
        "ts",
        by=["thread", *PLACE],
    )
    return written.filter(pl.col("ts") < pl.col("end")).select(*PLACE, "dims").unique()
