"""How long the GPU idles while the host is busy launching kernels for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.gpu_idle import idle_gaps
from traceq.analysis.base.ownership import outermost_ops
from traceq.analysis.base.steady import in_steps
from traceq.analysis.patterns.compilation import captures, compilations
from traceq.analysis.patterns.loops import loops
from traceq.analysis.patterns.optimizers import optimizer_steps
from traceq.intervals import overlap, spans
from traceq.model.names import DATA_REGION

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.trace import Trace


def launching_ops(trace: Trace, steady: SteadySteps, rounds: int) -> pl.DataFrame:
    """Return the outermost ops of the steps that launch kernels and do not wait.

    ``launches`` says how many calls, ``idle`` how long the GPU idled meanwhile. Left
    out is what has a name of its own: compiling, recording graphs, loading data, loops
    of so many rounds, and optimizers that update one parameter at a time.
    """
    roots = outermost_ops(trace)
    calls = trace.runtime.filter(pl.col("op").is_not_null())
    made = (
        calls.select("call", "kernels", id=roots.gather(calls["op"]))
        .group_by("id")
        .agg(
            launches=(pl.col("kernels") > 0).sum(),
            waits=pl.col("call").cast(pl.String).is_in(("sync", "allocation")).any(),
        )
        .filter(pl.col("launches") > 0, ~pl.col("waits"))
        .drop("waits")
    )
    ops = trace.ops.filter(pl.col("parent").is_null()).join(
        made, on="id", maintain_order="left"
    )
    ops = in_steps(ops, trace, steady)
    ops = ops.filter(overlap(spans(ops), _named_otherwise(trace, steady, rounds)) == 0)
    # Ops of several threads may run at the same time: each instant goes to one.
    ops = ops.sort("ts")
    reached = (pl.col("ts") + pl.col("dur")).cum_max().shift(1)
    own = ops.select(
        start=pl.max_horizontal("ts", reached), end=pl.col("ts") + pl.col("dur")
    ).with_columns(end=pl.max_horizontal("start", "end"))
    return ops.with_columns(idle=overlap(own, idle_gaps(trace)))


def _named_otherwise(trace: Trace, steady: SteadySteps, rounds: int) -> pl.DataFrame:
    name = pl.col("name").cast(pl.String)
    data = trace.annotations.filter(~pl.col("on_gpu"), name.str.contains(DATA_REGION))
    one_by_one = optimizer_steps(trace, steady).filter(
        pl.col("many") == 0, pl.col("parameters") >= rounds
    )
    return pl.concat(
        [
            spans(compilations(trace, steady)),
            spans(captures(trace, steady)),
            spans(data),
            spans(one_by_one),
            loops(trace, steady, rounds).spans.select("start", "end"),
        ]
    )
