"""Obstacles that torch.compile leaves: several backwards, recurrent layers, loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.base.steady import in_steps
from traceq.analysis.patterns.loops import loops
from traceq.analysis.time import device_syncs
from traceq.common import intervals
from traceq.linter import (
    END,
    asof,
    cached_per_trace,
    has_like,
    named_like,
    rows_where,
    text,
)
from traceq.model import names

from ._obstacle import Obstacle, largest_place

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.linter import Trace

_BACKWARD = "built-in method run_backward"
# What nn.LSTM, nn.GRU and nn.RNN call, which break torch.compile's graph.
_RNN = r"^aten::(lstm|gru|rnn_tanh|rnn_relu)$"
# Passes a step on average, where not every step has one that is recorded whole.
_ONE_BACKWARD = 1.5


def several_backwards(trace: Trace, steady: SteadySteps) -> Obstacle | None:
    """Return the backward passes of a step where there are several."""
    begin, end = steady.windows["start"].min(), steady.windows["end"].max()
    begun = _outermost(trace, _BACKWARD)["ts"]
    begun = begun.filter(begun.is_between(begin, end))
    passes = len(begun) / steady.count
    if passes <= _ONE_BACKWARD:
        return None
    ran = _ran_before(trace, begun)
    # A graph keeps one set of activations for a module: none may run twice before its
    # backward, nor before that of another one.
    alike = ran.n_unique() <= 1 and ran.list.n_unique().eq(ran.list.len()).all()
    return Obstacle("backwards" if alike else "passes", passes)


def _ran_before(trace: Trace, backwards: pl.Series) -> pl.Series:
    """Return the outermost modules that ran before each backward, since the last."""
    modules = forward_calls(trace)
    number = backwards.search_sorted(modules["ts"])
    ran = modules.with_columns(number=number).group_by("number").agg(text("name"))
    # What ran after the last backward has none.
    numbers = (
        pl.int_range(len(backwards), dtype=pl.UInt32, eager=True)
        .alias("number")
        .to_frame()
    )
    return numbers.join(ran, on="number", how="left", maintain_order="left")["name"]


def work_between_passes(trace: Trace, steady: SteadySteps) -> Obstacle | None:
    """Return the syncs that lie between modules which run before one backward."""
    backwards, modules = _outermost(trace, _BACKWARD), _of_backwards(trace)
    if not backwards.height or not modules.height:
        return None
    begun = backwards["ts"]
    ran = (
        modules.with_columns(number=begun.search_sorted(modules["ts"]))
        .filter(pl.col("number") < len(begun))
        .group_by("number")
        .agg(first=pl.col("end").min(), last=pl.col("ts").max())
    )
    syncs = in_steps(device_syncs.device_syncs(trace), trace, steady).filter(
        pl.col("module").is_null()
    )
    number = begun.search_sorted(syncs["ts"]).alias("number")
    joined = syncs.hstack([number]).join(ran, on="number", maintain_order="left")
    joined = joined.filter(pl.col("ts").is_between("first", "last"))
    return largest_place("between", joined, text("name"), steady.count)


def calls_in_loop(trace: Trace, steady: SteadySteps) -> Obstacle | None:
    """Return the longest loop of the model, if it takes long to compile."""
    table = loops(trace, steady, assumptions.FEWEST_ITERATIONS).table
    if table.height:
        table = table.filter(
            pl.col("longest") > assumptions.UNROLLED_ITERATIONS,
            pl.col("modules").list.len() > 0,
        )
    if not table.height:
        return None
    row = table.sort("longest", descending=True).row(0, named=True)
    place = (row["file"], row["line"], row["function"])
    return Obstacle("loop", row["longest"], "", *place)


def forward_calls(trace: Trace) -> pl.DataFrame:
    """Return the outermost modules that run in no backward: there they run again."""
    backwards, modules = (_outermost(trace, name) for name in (_BACKWARD, names.MODULE))
    if not backwards.height:
        return modules
    around = asof(modules, backwards.select("ts", until="end"), "ts", "ts")
    again = pl.col("ts") < pl.col("until")
    return around.filter(~again.fill_null(value=False)).drop("until")


def _of_backwards(trace: Trace) -> pl.DataFrame:
    """Return the outermost modules of which a backward was recorded, as far as known.

    Others evaluate: what is read between them is in no pass.
    """
    modules, ops = forward_calls(trace), trace.ops
    forward = ops["ts"][ops["forward"].drop_nulls().unique()].sort()
    if not len(forward):
        return modules
    begun, done = (
        intervals.count_before(forward, modules[side]) for side in ("ts", "end")
    )
    return modules.filter(done > begun)


@cached_per_trace
def _outermost(trace: Trace, pattern: str) -> pl.DataFrame:
    """Return the calls with such a name that are in no other one, in order."""
    # Of a million frames these are few: they are taken, not all filtered.
    rows = rows_where(named_like(trace.frames, pattern))
    calls = trace.frames[["ts", "name", "dur"]][rows]
    calls = calls.select("ts", "name", end=END).sort("ts", -pl.col("end"))
    inside = pl.col("ts") < pl.col("end").cum_max().shift(1)
    return calls.filter(~inside.fill_null(value=False))


def recurrent_layers(trace: Trace, steady: SteadySteps) -> Obstacle | None:
    """Return the recurrent layers that torch.compile breaks the graph at."""
    if not has_like(trace.ops, _RNN):
        return None
    ops = in_steps(trace.ops.filter(named_like(trace.ops, _RNN)), trace, steady)
    return largest_place("rnn", ops, text("name"), steady.count)
