"""Where the time of steps went: each instant to a kernel, or to one that came late.

While the GPU has nothing to do it waits for the next kernel, so that idle time belongs
to whoever launched that one; unless the host was compiling, loading data, recording
graphs or allocating then, or had waited for the GPU itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns.compilation import captures
from traceq.graph.devices import busiest_device
from traceq.intervals import disjoint, overlap, spans
from traceq.model.names import DATA_REGION, GRAPH_CAPTURE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.analysis.base.steady import SteadySteps
    from traceq.trace import Trace

SPECIAL = (
    "compiling",
    "loading data",
    "recording CUDA graphs",
    "allocating memory",
)
"""What the host may do instead of launching; the first that was going on counts."""


def busy_time(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return how long the GPU ran each kernel in the steps: ``kernel`` and ``busy``.

    Of kernels that run at the same time each instant counts once.
    """
    kernels = busiest_device(trace.kernels)
    own = disjoint(spans(kernels).with_columns(kernel=kernels["id"]))
    own = own.filter(pl.col("end") > pl.col("start"))
    return own.select("kernel", busy=overlap(own, _windows(steady)))


def idle_time(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the stretches of the steps in which the GPU idled.

    ``kernel`` is the one that ends it, none at the end of the trace; ``wait`` the call
    that had waited for the GPU until it ran dry, if any. The length is in a column for
    each of SPECIAL, and what is left of it in ``rest``.
    """
    stretches = _stretches(trace, steady)
    seen = pl.repeat(0, stretches.height, dtype=pl.Int64, eager=True)
    cover = spans(trace.kernels.clear())
    columns = {}
    for name, found in _special_spans(trace, steady):
        if found.height:
            cover = pl.concat([cover, found])
            until = overlap(stretches, cover)
            columns[name], seen = until - seen, until
        else:
            columns[name] = seen - seen
    length = stretches["end"] - stretches["start"]
    return stretches.with_columns(
        *(column.alias(name) for name, column in columns.items()),
        rest=length - seen,
        wait=_waits(trace, stretches),
    )


def wait_calls(trace: Trace) -> pl.DataFrame:
    """Return the calls with which the host waits for the GPU.

    Not the one with which the profiler ends: nothing is launched after it.
    """
    last = trace.runtime.filter(pl.col("kernels") > 0)["ts"].max()
    by_program = pl.col("op").is_not_null()
    if isinstance(last, int):
        by_program |= pl.col("ts") < last
    return trace.runtime.filter(pl.col("call") == "sync", by_program)


def _windows(steady: SteadySteps) -> pl.DataFrame:
    return steady.windows.select("start", "end")


def _stretches(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Cut idle time at the edges of steps, so that each piece is of one or of none."""
    kernels = busiest_device(trace.kernels).select("id", "ts", "dur")
    edges = pl.concat([steady.windows["start"], steady.windows["end"]]).unique()
    marks = pl.DataFrame({"ts": edges}).select(
        pl.lit(None, kernels.schema["id"]).alias("id"),
        "ts",
        dur=pl.lit(0, pl.Int64),
    )
    found = (
        pl.concat([kernels, marks])
        .sort("ts", "id", nulls_last=False)
        .select(
            start=(pl.col("ts") + pl.col("dur")).cum_max(),
            end=pl.col("ts").shift(-1),
            kernel=pl.col("id").backward_fill().shift(-1),
        )
        .filter(pl.col("end") > pl.col("start"))
    )
    return found.filter(overlap(found, _windows(steady)) > 0)


def _special_spans(
    trace: Trace, steady: SteadySteps
) -> Iterator[tuple[str, pl.DataFrame]]:
    yield "compiling", spans(trace.ops.filter("compiling"))
    names = trace.annotations["name"].unique()
    loading = names.filter(names.cast(pl.String).str.contains(DATA_REGION))
    regions = pl.col("name").is_in(loading.implode()) & ~pl.col("on_gpu")
    yield "loading data", spans(trace.annotations.filter(regions))
    call = pl.col("call")
    capturing = trace.runtime.filter(call == "capture")
    names = trace.ops["name"].unique().cast(pl.String)
    if capturing.height or names.str.contains(GRAPH_CAPTURE).any():
        # All of a run of compiled code that sets up a graph is slower for it.
        capturing = pl.concat([spans(capturing), spans(captures(trace, steady))])
    else:
        capturing = spans(capturing)
    yield "recording CUDA graphs", capturing
    yield "allocating memory", spans(trace.runtime.filter(call == "allocation"))


def _waits(trace: Trace, stretches: pl.DataFrame) -> pl.Series:
    """Return the call that ended in a stretch and had begun before it, if any."""
    calls = (
        wait_calls(trace)
        .select("id", "ts", end=pl.col("ts") + pl.col("dur"))
        .sort("end")
    )
    nothing = pl.repeat(None, stretches.height, dtype=calls.schema["id"], eager=True)
    if not calls.height:
        return nothing
    at = calls["end"].search_sorted(stretches["start"], side="left")
    # Where no call ends later, the last one does for a comparison that fails.
    at = at.clip(upper_bound=calls.height - 1)
    ended = calls["end"].gather(at)
    held_up = (
        (ended >= stretches["start"])
        & (ended < stretches["end"])
        & (calls["ts"].gather(at) <= stretches["start"])
    )
    return calls["id"].gather(at).zip_with(held_up, nothing)
