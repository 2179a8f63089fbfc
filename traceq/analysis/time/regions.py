"""Cost of each region of the program: host time, GPU time, backward.

A region is a call of ``record_function`` or of an nn.Module. The GPU works later than
the host, and the backward of a region's ops is launched elsewhere: both count for the
region, in columns of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.callers import innermost
from traceq.analysis.base.gpu_idle import idle_gaps
from traceq.analysis.base.steady import steady_steps
from traceq.common.expressions import END, text
from traceq.common.intervals import overlap
from traceq.common.words import layer_names
from traceq.graph.nesting import INDEX, parents
from traceq.graph.source.places import module_paths
from traceq.graph.steps import step_at
from traceq.model.names import MODULE, STEP

if TYPE_CHECKING:
    from traceq.model.trace import Trace

REGION, BY_MODULE = "region", "module"
DEEPEST = 64
"""Regions inside this many others count for the innermost of these."""
_GPU_MEMORY = 1
_FIGURES = ("gpu", "backward", "kernels", "launches", "bytes", "memory")


@dataclass(frozen=True)
class Regions:
    """The regions of a trace's steady steps, or of all of it where it has none."""

    calls: pl.DataFrame
    """A row for each call: ``path``, ``ts`` and what it costs, in ns and bytes.

    ``host`` is from its start to its end, as recorded; ``host_estimated`` the same
    without the profiler, where that is asked for; ``gpu`` what it launched;
    ``backward`` what is launched after it for the backward of its ops; ``idle`` in
    which the GPU did nothing while it ran; ``kernels``, ``launches``, ``bytes`` copied
    and set, ``memory`` allocated and not freed in it.
    """
    work: pl.DataFrame
    """GPU work by call: ``call``, ``op``, ``dur``, and whether it is ``later``, in the
    backward."""
    steps: int
    gpu_ns: int
    """GPU time of the steps, each kernel in full."""
    placed_ns: int
    """Of that, what was launched in some region."""


def regions(trace: Trace, by: str = REGION) -> Regions:
    """Return the cost of the regions of a trace, or of the calls of its modules."""
    steady = steady_steps(trace)
    calls = _calls(trace, by)
    work = _work(trace, steady.kernels)
    inside = _inside(calls, work)
    later = _of_calls(calls, work, "forward_thread", "forward_ts").join(
        inside, on=["call", "kernel"], how="anti"
    )
    call_work = pl.concat(
        [
            inside.with_columns(later=pl.lit(value=False)),
            later.with_columns(later=pl.lit(value=True)),
        ]
    ).join(work.drop("thread", "ts", "forward_thread", "forward_ts"), on="kernel")
    counted = (
        calls.with_columns(
            overlap(calls.select(start="ts", end=END), idle_gaps(trace)).alias("idle")
        )
        .filter("steady")
        .select("call", "path", "ts", "idle", host="dur")
    )
    for more in (_totals(call_work), _memory(trace, calls)):
        counted = counted.join(more, on="call", how="left", maintain_order="left")
    placed = work.join(inside, on="kernel", how="semi")["dur"].sum()
    return Regions(
        counted.with_columns(
            pl.col(_FIGURES).fill_null(0), host_estimated=pl.lit(None, pl.Float64)
        ),
        call_work.select("call", "op", "dur", "later"),
        steady.count,
        int(steady.kernels["dur"].sum()),
        int(placed),
    )


def _calls(trace: Trace, by: str) -> pl.DataFrame:
    """Return the calls in pre-order, with their paths and the rows around them."""
    if by == REGION:
        marks = text("name").str.contains(STEP)
        marked = trace.annotations.filter(~pl.col("on_gpu"), ~marks)
        named = marked.select("thread", "ts", "dur", name=text("name"))
    else:
        module = text("name").str.extract(MODULE)
        named = trace.frames.select("thread", "ts", "dur", name=module)
    ordered = (
        named.drop_nulls("name")
        .sort("thread", "ts", -END, maintain_order=True)
        .with_columns(
            call=pl.int_range(pl.len(), dtype=INDEX),
            parent=pl.lit(None, INDEX),
        )
    )
    ordered = ordered.with_columns(
        parents(ordered["thread"], ordered["ts"] + ordered["dur"]).alias("parent")
    )
    path = module_paths(ordered["name"], ordered["parent"]).alias("path")
    return _in_steady_steps(trace, ordered.with_columns(path))


def _in_steady_steps(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that begin in steady steps; all of them where there are none.

    The others stay in the tree, so that ``call`` is the row: they are only marked.
    """
    steps = trace.steps.filter("averaged").select("step", "ts", end=END)
    if not trace.steps.height:
        return calls.with_columns(steady=pl.lit(value=True))
    at = step_at(steps, calls["ts"])
    return calls.with_columns(at.is_not_null().alias("steady"))


def _work(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return GPU work with the moments of its launch and of its forward op, if any."""
    ops = trace.ops.select(
        op="id",
        name=text("name"),
        phase=pl.col("phase").cast(pl.String),
        twin="forward",
    )
    twins = trace.ops.select(twin="id", forward_thread="thread", forward_ts="ts")
    launches = trace.runtime.select(launch="id", thread="thread", ts="ts")
    return (
        kernels.select("dur", "op", "launch", "bytes", kernel="id", work=text("name"))
        .join(launches, on="launch", how="left")
        .join(ops, on="op", how="left")
        .join(twins, on="twin", how="left")
        .select(
            "kernel",
            "dur",
            "launch",
            "thread",
            "ts",
            "forward_thread",
            "forward_ts",
            "bytes",
            op=pl.coalesce("name", "work"),
            in_backward=pl.col("phase") == "backward",
        )
    )


def _inside(calls: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs of calls and the work that they launched.

    Autograd launches from a thread of its own while the program waits in backward():
    that work is also of the regions that the program's thread is in at that moment.
    """
    own = _of_calls(calls, work, "thread", "ts")
    if not calls.height:
        return own
    longest = calls.group_by("thread").agg(pl.col("dur").sum()).sort("dur", "thread")
    main = longest["thread"].last()
    elsewhere = work.filter("in_backward", pl.col("thread") != main).with_columns(
        thread=pl.lit(main, calls.schema["thread"])
    )
    return pl.concat([own, _of_calls(calls, elsewhere, "thread", "ts")]).unique()


def _of_calls(
    calls: pl.DataFrame, work: pl.DataFrame, thread: str, ts: str
) -> pl.DataFrame:
    """Return each piece of work with every call that is open at a moment of it."""
    moments = work.select("kernel", thread=thread, ts=ts).drop_nulls()
    around = innermost(calls.select("call", "thread", "ts", "dur"), moments)["call"]
    pairs = moments.select("kernel").with_columns(around).drop_nulls()
    levels = [pairs]
    for _ in range(DEEPEST):
        above = calls["parent"].gather(pairs["call"])
        pairs = pairs.with_columns(above.alias("call")).drop_nulls()
        if not pairs.height:
            break
        levels.append(pairs)
    steady = calls.filter("steady").select("call")
    return pl.concat(levels).join(steady, on="call", how="semi")


def _totals(call_work: pl.DataFrame) -> pl.DataFrame:
    later = pl.col("later")
    return call_work.group_by("call").agg(
        gpu=pl.col("dur").filter(~later).sum(),
        backward=pl.col("dur").filter(later).sum(),
        kernels=(~later).sum(),
        launches=pl.col("launch").filter(~later).drop_nulls().n_unique(),
        bytes=pl.col("bytes").filter(~later).sum(),
    )


def _memory(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the GPU memory that each call allocated and did not free itself."""
    events = trace.memory.filter(pl.col("device_type") == _GPU_MEMORY).select(
        "thread", "ts", "bytes", kernel="id"
    )
    pairs = _of_calls(calls, events, "thread", "ts")
    return (
        pairs.join(events.select("kernel", "bytes"), on="kernel")
        .group_by("call")
        .agg(memory=pl.col("bytes").sum())
    )


def by_path(costs: Regions, *, instances: bool = True) -> pl.DataFrame:
    """Return a row for each path, the most GPU time first.

    It has ``path``, ``calls``, the totals of all figures, the median of
    ``host_estimated``, and for ``host`` and for
    ``gpu_all``, which is GPU time with the backward, the median of a call and the
    10th and 90th percentile. Without ``instances`` the numbers of modules are left
    out of paths, so that all layers are one row.
    """
    path = text("path") if instances else layer_names(pl.col("path"))
    calls = costs.calls.with_columns(
        path=path, gpu_all=pl.col("gpu") + pl.col("backward")
    )
    spread = {
        f"{figure}_{name}": pl.col(figure).quantile(share, "linear")
        for figure in ("host", "gpu_all")
        for name, share in (("low", 0.1), ("median", 0.5), ("high", 0.9))
    }
    return (
        calls.group_by("path", maintain_order=True)
        .agg(
            pl.col("host", "idle", "gpu_all", *_FIGURES).sum(),
            calls=pl.len(),
            host_estimated=pl.col("host_estimated").median(),
            **spread,
        )
        .sort("gpu_all", "host", descending=True, maintain_order=True)
    )


def calls_named(costs: Regions, name: str) -> pl.DataFrame:
    """Return the calls of a region, by its path, or by the last part of it.

    The numbers of modules may be left out.
    """
    path = text("path")
    plain = layer_names(pl.col("path"))
    ends = [
        expression.str.ends_with(f"/{name}") | (expression == name)
        for expression in (path, plain)
    ]
    exact = costs.calls.filter((path == name) | (plain == name))
    return exact if exact.height else costs.calls.filter(ends[0] | ends[1])


def ops_of(costs: Regions, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the GPU work of calls, by op: ``op``, ``ns`` and ``kernels`` per call.

    The backward is in it; of a call inside another of them, its work counts once for
    each.
    """
    count = max(1, calls.height)
    return (
        costs.work.join(calls.select("call"), on="call", how="semi")
        .group_by("op")
        .agg(ns=pl.col("dur").sum() / count, kernels=pl.len() / count)
        .sort("ns", "op", descending=[True, False])
    )
