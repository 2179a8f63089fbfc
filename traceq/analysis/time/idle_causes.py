"""What the host did while the GPU had nothing to do.

The moments at which anything begins or ends are put in one row; between two of them
nothing changes, so counting what is open there says what each stretch was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns.compilation import all_captures
from traceq.graph.devices import busiest_device
from traceq.model.names import DATA_REGION, GRAPH_CAPTURE

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.trace import Trace

# The first of these that was going on is what the GPU was waiting for.
CAUSES = (
    "compiling",
    "loading data",
    "recording CUDA graphs",
    "allocating memory",
    "waiting for the GPU",
    "launching",
    "running operators",
    "running Python",
)
UNKNOWN = "unknown"

_GPU = "gpu"
_WINDOW = "window"
_CAUSE_OF_CALL = {
    "capture": "recording CUDA graphs",
    "allocation": "allocating memory",
    "sync": "waiting for the GPU",
    "launch": "launching",
    "graph launch": "launching",
    "copy": "launching",
    "set": "launching",
}


def idle_causes(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return how long the GPU idled, by what the host did: ``cause``, ``time``.

    Of several GPUs it is the busiest one; without any, nothing idled.
    """
    if not trace.kernels.height:
        return pl.DataFrame(schema={"cause": pl.String, "time": pl.Int64})
    return causes_in(trace, steady.windows, busiest_device(trace.kernels))


def causes_in(
    trace: Trace, windows: pl.DataFrame, but: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Return what the host did in windows of time, but for some events: ``cause``.

    ``time`` is how long; the windows have ``start`` and ``end`` and do not overlap.
    """
    events = trace.kernels.clear() if but is None else but
    intervals = pl.concat(_intervals(trace, windows, events))
    labels = (_WINDOW, _GPU, *CAUSES)
    moments = pl.concat(
        [
            intervals.select("label", time="start", change=pl.lit(1, pl.Int32)),
            intervals.select("label", time="end", change=pl.lit(-1, pl.Int32)),
        ]
    ).sort("time")
    stretches = moments.with_columns(
        pl.when(pl.col("label") == label)
        .then("change")
        .otherwise(0)
        .cum_sum()
        .alias(label)
        for label in labels
    ).with_columns(length=pl.col("time").shift(-1) - pl.col("time"))
    cause = pl.coalesce(
        pl.when(pl.col(cause) > 0).then(pl.lit(cause)) for cause in CAUSES
    ).fill_null(UNKNOWN)
    return (
        stretches.filter(pl.col(_WINDOW) > 0, pl.col(_GPU) == 0)
        .group_by(cause=cause)
        .agg(time=pl.col("length").sum())
        .filter(pl.col("time") > 0)
        .sort("time", "cause", descending=[True, False])
    )


def _intervals(
    trace: Trace, windows: pl.DataFrame, but: pl.DataFrame
) -> list[pl.DataFrame]:
    """Return intervals with labels: the windows, what to leave out, the causes."""
    roots = trace.ops.filter(pl.col("parent").is_null())
    recording = trace.ops.filter(
        pl.col("name").cast(pl.String).str.contains(GRAPH_CAPTURE)
    )
    regions = trace.annotations.filter(
        ~pl.col("on_gpu"), pl.col("name").cast(pl.String).str.contains(DATA_REGION)
    )
    calls = trace.runtime.with_columns(
        label=pl.col("call")
        .cast(pl.String)
        .replace_strict(_CAUSE_OF_CALL, default=None)
    ).drop_nulls("label")
    spans = (
        (_GPU, but),
        ("compiling", trace.ops.filter("compiling")),
        ("loading data", regions),
        ("recording CUDA graphs", recording),
        ("recording CUDA graphs", all_captures(trace)),
        ("running operators", roots),
        ("running Python", trace.frames.filter("user")),
    )
    window = windows.select(pl.lit(_WINDOW).alias("label"), "start", "end")
    return [
        window,
        *(
            table.select(
                pl.lit(label).alias("label"),
                start="ts",
                end=pl.col("ts") + pl.col("dur"),
            )
            for label, table in spans
        ),
        calls.select("label", start="ts", end=pl.col("ts") + pl.col("dur")),
    ]
