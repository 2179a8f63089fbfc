"""Launches, and how long the GPU idles while the host is busy launching kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.gpu_idle import idle_gaps
from traceq.analysis.base.ownership import outermost_ops
from traceq.analysis.base.steady import in_steps
from traceq.analysis.base.sync_calls import DEVICE_SYNCS, blocking_calls
from traceq.analysis.patterns.loops import loops
from traceq.analysis.patterns.optimizers import optimizer_steps
from traceq.analysis.time.idle_causes import CAPTURING, COMPILING, LOADING, host_spans
from traceq.expressions import END, text
from traceq.intervals import disjoint, overlap, spans
from traceq.model.names import BEGIN_CAPTURE, END_CAPTURE

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.trace import Trace


def launching_ops(trace: Trace, steady: SteadySteps, rounds: int) -> pl.DataFrame:
    """Return the outermost ops of the steps that launch kernels and do not sync.

    ``launches`` is the number of their launches, ``idle`` how long the GPU idled
    meanwhile. Left out is what other rules name: compiling, capturing CUDA graphs,
    loading data, loops of at least ``rounds`` rounds, and optimizers that update that
    many parameters one at a time.
    """
    syncs = blocking_calls(trace).filter(pl.col("kind").is_in(DEVICE_SYNCS))["id"]
    blocks = pl.col("id").is_in(syncs.implode()) | (pl.col("call") == "allocation")
    calls = trace.runtime.filter(pl.col("op").is_not_null())
    made = (
        calls.select(
            "kernels", blocks=blocks, id=outermost_ops(trace).gather(calls["op"])
        )
        .group_by("id")
        .agg(launches=(pl.col("kernels") > 0).sum(), blocks=pl.col("blocks").any())
        .filter(pl.col("launches") > 0, ~pl.col("blocks"))
        .drop("blocks")
    )
    ops = trace.ops.filter(pl.col("parent").is_null()).join(
        made, on="id", maintain_order="left"
    )
    ops = in_steps(ops, trace, steady)
    ops = ops.filter(overlap(spans(ops), _named_otherwise(trace, steady, rounds)) == 0)
    # Ops of several threads may run at the same time: each instant goes to one.
    ops = ops.sort("ts", END)
    return ops.with_columns(idle=overlap(disjoint(spans(ops)), idle_gaps(trace)))


def launches_outside_captures(runtime: pl.DataFrame) -> pl.DataFrame:
    """Return the launches that ran at once, without those captured in a CUDA graph."""
    launches = pl.col("call").is_in(["launch", "graph launch"])
    if not (runtime["call"] == "capture").any():
        return runtime.filter(launches)
    opened = (
        text("name").str.contains(BEGIN_CAPTURE).cast(pl.Int32)
        - text("name").str.contains(END_CAPTURE).cast(pl.Int32)
    ).cum_sum()
    return (
        runtime.sort("thread", "ts", "id")
        .with_columns(open_captures=opened.over("thread"))
        .filter(launches, pl.col("open_captures") <= 0)
        .drop("open_captures")
    )


def _named_otherwise(trace: Trace, steady: SteadySteps, rounds: int) -> pl.DataFrame:
    """Return when the host did something that another rule reports."""
    one_by_one = optimizer_steps(trace, steady).filter(
        pl.col("many") == 0, pl.col("parameters") >= rounds
    )
    return pl.concat(
        [
            host_spans(trace, (COMPILING, CAPTURING, LOADING)),
            spans(one_by_one),
            loops(trace, steady, rounds).spans.select("start", "end"),
        ]
    )
