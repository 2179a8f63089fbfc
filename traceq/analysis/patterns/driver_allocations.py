"""Calls that take memory from the driver or give it back, and how memory grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.graph.nesting import nearest
from traceq.model.names import GRAPH_CAPTURE

if TYPE_CHECKING:
    from traceq.trace import Trace

_CPU = 0


def calls_named(
    trace: Trace, runtime: pl.DataFrame, takes: str, gives: str
) -> pl.DataFrame:
    """Return the calls that take or give memory back (``gives``), with their ``op``.

    Those made while compiling or while recording a CUDA graph are left out: a graph
    gets its memory once.
    """
    name = pl.col("name").cast(pl.String)
    calls = runtime.filter(pl.col("call") == "allocation").with_columns(
        gives=name.str.contains(gives), takes=name.str.contains(takes)
    )
    calls = calls.filter(pl.col("gives") | pl.col("takes"))
    calls = calls.with_columns(
        name=name, op_name=trace.ops["name"].gather(calls["op"]).cast(pl.String)
    )
    if not calls.height:
        return calls
    names = trace.ops["name"].unique()
    recording = names.filter(names.cast(pl.String).str.contains(GRAPH_CAPTURE))
    once = trace.ops["compiling"] | trace.ops["name"].is_in(recording.implode())
    around = nearest(trace.ops["parent"], once.fill_null(value=False))
    return calls.filter(around.gather(calls["op"]).is_null())


def growth(trace: Trace) -> pl.DataFrame:
    """Return what each step leaves allocated more than the one before: ``grown``."""
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
        "device", "step", grown=pl.col("allocated").diff().over("device")
    ).drop_nulls("grown")
