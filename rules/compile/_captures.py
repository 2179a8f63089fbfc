"""Host time of captures of CUDA graphs, and of compiled code that replays them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns import compilation
from traceq.linter import END, Fix, View, fill_false, merged, nearest

if TYPE_CHECKING:
    from collections.abc import Collection


def capture_spans(view: View, calls: Collection[int]) -> pl.DataFrame:
    """Return when compiled code captured, without the parts of it after a break."""
    ops = view.trace.ops
    own = pl.Series(list(calls), dtype=pl.UInt32)
    spans = ops[own].select(start="ts", end=END)
    region = view.ops_matching(compilation.REGION)
    inner = region & fill_false(ops["parent"].is_in(own.implode()))
    apart = ops.filter(inner & ~ops["id"].is_in(own.implode()))
    return without(spans, apart.select(start="ts", end=END))


def without(parts: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """Return what is in spans and in none of others."""
    if not (parts.height and others.height):
        return parts
    cut = merged(others)
    first, last = int(parts["start"].min()), int(parts["end"].max())  # type: ignore[arg-type]  # there are some
    between = pl.DataFrame(
        {
            "after": pl.concat([pl.Series([first]), cut["end"]]),
            "before": pl.concat([cut["start"], pl.Series([last])]),
        }
    )
    return (
        parts.join_where(
            between,
            pl.col("after") < pl.col("end"),
            pl.col("before") > pl.col("start"),
        )
        .select(
            start=pl.max_horizontal("start", "after"),
            end=pl.min_horizontal("end", "before"),
        )
        .filter(pl.col("start") < pl.col("end"))
        .sort("start")
    )


def fix(view: View, calls: Collection[int]) -> Fix:
    """Return that these calls replay a graph, and take what other calls do that do."""
    spans = capture_spans(view, calls)
    took = int((spans["end"] - spans["start"]).sum())
    left = len(calls) * _replay_ns(view, calls)
    return Fix(spans=spans, host_share=max(0.0, 1 - left / took) if took else 1.0)


def _replay_ns(view: View, calls: Collection[int]) -> float:
    """Return how long compiled code runs that replays a graph; 0 if none does."""
    ops, runtime = view.trace.ops, view.runtime
    replays = runtime.filter(pl.col("call") == "graph launch")["op"].drop_nulls()
    code = nearest(ops["parent"], ops["name"] == compilation.CALL)
    codes = code[replays].drop_nulls().unique()
    codes = codes.filter(~codes.is_in(list(calls)))
    return float(ops["dur"][codes].median() or 0)
