"""Optimizer steps: one op per parameter, or one op for many parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.ownership import named_like, outermost_ops
from traceq.analysis.base.steady import in_steps
from traceq.common.expressions import END, asof, constant, rows_where, text
from traceq.graph.nesting import sums_of
from traceq.model.names import OPTIMIZER_STEP

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.model.tables import Tables
    from traceq.model.trace import Trace

_STEP_OF = "Optimizer.step#"
# Ops that update many tensors at once.
_MANY = r"^aten::(_foreach_|_fused_|_amp_foreach)|^Torch-Compiled Region"
_FOREACH = r"^aten::_foreach_"


def optimizer_regions(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the regions of the steps in which an optimizer updates its weights."""
    return in_steps(_regions(trace), trace, steady)


def _regions(trace: Tables) -> pl.DataFrame:
    regions = trace.annotations
    chosen = named_like(regions, OPTIMIZER_STEP) & ~regions["on_gpu"]
    return regions.filter(chosen)


@cached_per_trace
def closures(trace: Tables) -> pl.DataFrame:
    """Return the regions of optimizers in which a closure ran, and until when.

    ``region`` and ``closed``. Lightning gives ``step`` one with the forward and the
    backward, and LBFGS needs one.
    """
    regions = _regions(trace).select("thread", "ts", "dur", region="id").sort("ts")
    ops, phase = trace.ops[["thread", "ts", "dur"]], trace.ops["phase"]
    begun = ops["ts"].filter(phase == "forward").sort()
    end = regions["ts"] + regions["dur"]
    if begun.search_sorted(regions["ts"]).equals(begun.search_sorted(end)):
        # Nothing of the forward begins in any, as in most programs.
        return pl.DataFrame(
            schema={"region": regions["region"].dtype, "closed": pl.Int64}
        )
    called = _inside(ops.filter(phase == "forward"), regions)
    regions = regions.join(called, on="region", how="semi", maintain_order="left")
    # The backward may run in a thread of its own.
    both = ops.filter((phase == "forward") | (phase == "backward")).drop("thread")
    matched = asof(both, regions.select("region", since="ts", until=END), "ts", "since")
    matched = matched.filter(pl.col("ts") < pl.col("until"))
    return matched.group_by("region").agg(closed=END.max())


@cached_per_trace
def optimizer_steps(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the launches of each optimizer step, one row per region.

    ``optimizer`` is its class. Of the outermost ops with GPU work in the region,
    ``many`` update several tensors and ``single`` update one. For the latter there are
    ``parameters`` (how often most of them are called), ``kernels`` and ``gpu_ns`` (what
    they launch), ``names`` and ``ops``.

    Example: for 52 parameters AdamW with ``foreach=False`` calls ``aten::lerp_``,
    ``aten::addcmul_``, ``aten::sqrt`` and three more ops 52 times, and ``aten::mul_``
    104 times. Most have 52 calls, so ``parameters`` is 52, and ``single`` is 416.
    """
    regions, inside = _of_classes(trace, steady), _launched(trace, steady)
    many = named_like(trace.ops, _MANY)[inside["id"]]
    inside = inside.with_columns(name=text("name"), many=many)
    several = inside.group_by("region").agg(
        pl.col("many").sum(), pl.col("file", "line", "function").first()
    )
    single = inside.filter(~pl.col("many"))
    return (
        regions.join(several, on="region", maintain_order="left")
        .join(
            _single_tensor_totals(single),
            on="region",
            how="left",
            maintain_order="left",
        )
        .with_columns(pl.col("single").fill_null(0))
    )


@cached_per_trace
def foreach_steps(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the steps of optimizers whose work on the GPU is all of foreach ops.

    One row for each region. ``optimizer`` is its class; ``kernels`` and ``gpu_ns`` are
    what the ops launch, ``names`` and ``ops`` which they are. ``start`` and ``end`` are
    those of the first and of the last foreach op in the region, whether it launches or
    not: before them the parameters are only collected.

    Example: AdamW calls ``aten::_foreach_add_`` on its counts of steps, which are on
    the host, then ``aten::_foreach_mul_`` and seven more ops on lists of parameters.
    """
    foreach = named_like(trace.ops, _FOREACH)
    regions, launching = _of_classes(trace, steady), _launched(trace, steady)
    work = (
        launching.with_columns(foreach=foreach[launching["id"]])
        .group_by("region")
        .agg(
            pl.col("kernels", "gpu_ns").sum(),
            pl.col("file", "line", "function").first(),
            pl.col("foreach").all(),
            names=text("name").unique(maintain_order=True),
            ops="id",
        )
        .filter("foreach")
        .drop("foreach")
    )
    times = (
        _inside(trace.ops[["thread", "ts", "dur"]].filter(foreach), regions)
        .group_by("region")
        .agg(start=pl.col("ts").min(), end=END.max())
    )
    return regions.join(work, on="region", maintain_order="left").join(
        times, on="region", maintain_order="left"
    )


@cached_per_trace
def _of_classes(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the regions of optimizers, in order, with the class of each.

    They begin after the closure that ``step`` was given, if it was: as Lightning does,
    which runs the forward and the backward there.
    """
    optimizer = text("name").str.strip_prefix(_STEP_OF).str.strip_suffix(".step")
    regions = (
        optimizer_regions(trace, steady)
        .with_columns(optimizer=optimizer)
        .filter(pl.col("optimizer") != "")
        .select("thread", "step", "optimizer", "ts", "dur", region="id")
        .sort("ts")
    )
    closed = closures(trace)
    if not closed.height:
        return regions
    start = pl.max_horizontal("ts", "closed")
    return (
        regions.join(closed, on="region", how="left", maintain_order="left")
        .with_columns(ts=start, dur=pl.max_horizontal(0, END - start))
        .drop("closed")
    )


@cached_per_trace
def _launched(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the ops of ``_launching`` that begin in one of the regions."""
    return _inside(_launching(trace), _of_classes(trace, steady))


def _inside(ops: pl.DataFrame, regions: pl.DataFrame) -> pl.DataFrame:
    """Return the ops that begin in one of the regions, and in which."""
    around = regions.select("thread", "region", until=END, since="ts")
    return (
        asof(ops, around, "ts", "since", by="thread")
        .filter(pl.col("ts") < pl.col("until"))
        .drop("until")
    )


def _single_tensor_totals(single: pl.DataFrame) -> pl.DataFrame:
    """Return the totals of the single-tensor ops, for each region."""
    called = single.group_by("region", "name").agg(times=pl.len())
    # Most ops are called once for each parameter, some of them twice.
    most_common = called.group_by("region").agg(parameters=pl.col("times").mode().min())
    return (
        single.group_by("region", maintain_order=True)
        .agg(
            pl.col("kernels", "gpu_ns").sum(),
            single=pl.len(),
            names=pl.col("name").unique(maintain_order=True),
            ops="id",
        )
        .join(most_common, on="region")
    )


@cached_per_trace
def _launching(trace: Trace) -> pl.DataFrame:
    """Return the outermost ops that start work on the GPU, and how much."""
    ops, kernels = trace.ops, trace.kernels
    root = outermost_ops(trace)[kernels["op"]]
    each = constant(1, kernels.height, pl.Int64)
    count, time = (
        sums_of(root, column, ops.height) for column in (each, kernels["dur"])
    )
    # Work is of outermost ops alone, and an op's id is its row.
    rows = rows_where(count > 0)
    columns = ["id", "name", "thread", "ts", "file", "line", "function"]
    return ops[columns][rows].with_columns(kernels=count[rows], gpu_ns=time[rows])
