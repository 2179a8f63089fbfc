"""What an optimizer's step is made of: one op for each parameter, or one for many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.ownership import outermost_ops
from traceq.analysis.base.steady import in_steps
from traceq.model.names import OPTIMIZER_STEP

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.trace import Trace

_MANY = r"^aten::(_foreach_|_fused_|_amp_foreach)|^Torch-Compiled Region"


def optimizer_regions(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the regions of the steps in which an optimizer updates its weights."""
    named = trace.annotations.filter(
        ~pl.col("on_gpu"), pl.col("name").cast(pl.String).str.contains(OPTIMIZER_STEP)
    )
    return in_steps(named, trace, steady)


@cached_per_trace
def optimizer_steps(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return what each step of an optimizer launches: one row for each of its regions.

    ``optimizer`` is its class, ``many`` how many outermost ops with GPU work it calls
    that handle several tensors, ``single`` how many that handle one. Of the latter
    ``parameters`` says how often most of them are called, ``kernels`` and ``gpu`` what
    they launch and how long that runs, ``names`` and ``ops`` what they are.
    """
    regions = (
        trace.annotations.filter(~pl.col("on_gpu"))
        .with_columns(
            optimizer=pl.col("name")
            .cast(pl.String)
            .str.extract(OPTIMIZER_STEP + r"(.+?)(?:\.step)?$")
        )
        .drop_nulls("optimizer")
        .select("thread", "step", "optimizer", "ts", "dur", region="id")
        .sort("ts")
    )
    regions = in_steps(regions, trace, steady)
    ops = _launching(trace).join_asof(
        regions.sort("ts").select(
            "thread", "ts", "region", end=pl.col("ts") + pl.col("dur")
        ),
        on="ts",
        by="thread",
        strategy="backward",
        check_sortedness=False,
    )
    name = pl.col("name").cast(pl.String)
    inside = ops.filter(pl.col("ts") < pl.col("end")).with_columns(
        many=name.str.contains(_MANY), name=name
    )
    several = inside.group_by("region").agg(
        pl.col("many").sum(),
        file=pl.col("file").first(),
        line=pl.col("line").first(),
        function=pl.col("function").first(),
    )
    single = inside.filter(~pl.col("many"))
    return (
        regions.join(several, on="region", maintain_order="left")
        .join(_one_by_one(single), on="region", how="left", maintain_order="left")
        .with_columns(pl.col("single").fill_null(0))
    )


def _one_by_one(single: pl.DataFrame) -> pl.DataFrame:
    """Return for each region what its ops for one tensor each come to."""
    called = single.group_by("region", "name").agg(times=pl.len())
    # Most kinds of op are called once for each parameter, some twice.
    usual = called.group_by("region").agg(parameters=pl.col("times").mode().min())
    return (
        single.group_by("region", maintain_order=True)
        .agg(
            single=pl.len(),
            kernels=pl.col("kernels").sum(),
            gpu=pl.col("gpu").sum(),
            names=pl.col("name").unique(maintain_order=True),
            ops="id",
        )
        .join(usual, on="region")
    )


def _launching(trace: Trace) -> pl.DataFrame:
    """Return the outermost ops that start work on the GPU, and how much, in order."""
    roots = outermost_ops(trace)
    work = (
        trace.kernels.select("dur", id=roots.gather(trace.kernels["op"]))
        .drop_nulls("id")
        .group_by("id")
        .agg(kernels=pl.len(), gpu=pl.col("dur").sum())
    )
    return (
        trace.ops.filter(pl.col("parent").is_null())
        .select("id", "name", "thread", "ts", "file", "line", "function")
        .join(work, on="id")
        .sort("ts")
    )
