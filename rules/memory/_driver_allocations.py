"""Driver calls that allocate or free memory, and the growth of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import fill_false, first_sizes, named_like, nearest, plain, text
from traceq.model import names

if TYPE_CHECKING:
    from traceq.linter import Trace

_CPU = 0
_FEWEST_STEPS = 2
# No tensor of fewer elements has the 1 MiB from which on a block has a segment for
# large ones.
_LARGE = 1 << 17


def driver_calls(
    trace: Trace, runtime: pl.DataFrame, allocs: str, frees: str
) -> pl.DataFrame:
    """Return the calls that allocate, or free (``frees``), with their ``op_name``.

    ``allocs`` and ``frees`` are patterns of their names. Calls made while compiling or
    capturing a CUDA graph are left out: a graph allocates its memory once.
    """
    # A call's id is its row: the names of all are known already.
    freeing, allocating = (
        named_like(trace.runtime, name)[runtime["id"]] for name in (frees, allocs)
    )
    chosen = (runtime["call"] == "allocation") & (freeing | allocating)
    calls = runtime.filter(chosen)
    calls = calls.with_columns(
        text("name"),
        frees=freeing.filter(chosen),
        op_name=trace.ops["name"][calls["op"]].cast(pl.String),
    )
    if not calls.height:
        return calls
    once = trace.ops["compiling"] | named_like(trace.ops, names.GRAPH_CAPTURE)
    around = nearest(trace.ops["parent"], fill_false(once))
    return calls.filter(around[calls["op"]].is_null())


def growth(trace: Trace) -> pl.DataFrame:
    """Return the increase of allocated memory from step to step."""
    left = (
        trace.memory.filter(
            pl.col("device_type") != _CPU, pl.col("allocated").is_not_null()
        )
        .group_by("device", "step")
        .agg(pl.col("allocated").sort_by("ts").last())
        .drop_nulls("step")
        .sort("device", "step")
    )
    return left.select(
        "device", "step", growth=pl.col("allocated").diff().over("device")
    ).drop_nulls("growth")


def shapes_change(trace: Trace, ops: pl.DataFrame) -> bool | None:
    """Return whether ops that all steps have get large tensors of other shapes in some.

    None where shapes were not recorded, or of one step.
    """
    if not trace.facts.shapes or ops["step"].n_unique() < _FEWEST_STEPS:
        return None
    calls = ops[["name", "inputs", "step"]].drop_nulls()
    calls = calls.filter(fill_false(first_sizes(trace)[calls["inputs"]] >= _LARGE))
    shapes = calls.select(
        "step",
        name=plain(trace.ops, calls["name"]),
        shape=trace.inputs["dims_text"][calls["inputs"]],
    ).unique()
    steps = pl.col("step").n_unique()
    return bool(
        shapes.select((steps.over("name") != steps.over("name", "shape")).any()).item()
    )
