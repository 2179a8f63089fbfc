"""Host time that compiling the model with CUDA graphs removes.

Only the model is compiled: code outside its modules stays, such as the loss, averaged
weights, clipping and a trainer's own Python. Gradient accumulation for each weight
stays too, and each call of the compiled model has a cost on the host.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions, ownership
from traceq.analysis.base.steady import in_steps
from traceq.common import intervals
from traceq.linter import (
    END,
    cached_per_trace,
    dataclass,
    fill_false,
    named_like,
    rows_where,
    text,
)
from traceq.model import names

from ._compile_obstacles import forward_calls

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.linter import Trace

OUTER_MODULE = text("module").str.extract("^([^/]+)")
"""The outermost module of a path."""
_NODE = "^autograd::engine::evaluate_function"
# The engine runs it for each weight, whatever computes the gradients.
_ACCUMULATES = "AccumulateGrad$"
# What has weights, in either pass.
_WEIGHTS = (
    r"^aten::(linear$|addmm$|mm$|bmm$|baddbmm$|matmul$|_?conv(\d|_|olution)|_?embedding"
    r"|_?scaled_dot_product|lstm$|gru$|rnn_"
    r"|(_fused_|native_|cudnn_)?(batch|group|instance|layer|rms)_norm)"
)


@dataclass(frozen=True)
class GraphedModel:
    """The part of the steady-state steps that a CUDA graph of the model replays."""

    modules: pl.Series | None
    """Its modules; ``None`` where none were recorded, or each is too small alone."""
    windows: pl.DataFrame
    """Times of its runs, ``start`` and ``end``; with modules, the steps."""
    kernels: pl.Series
    """The ids of its kernels."""
    host_share: float
    """Host time that is removed; 0 if calling it takes as long."""
    node_share: float
    """Fraction of the autograd engine's work that is its own."""
    is_function: bool = False
    """True if it is a function that calls modules, as those of a list."""

    def are_in_windows(self, trace: Trace, rows: pl.DataFrame) -> pl.Series:
        """Return which of these are its, by their ``start`` and ``op``."""
        in_window = _during(self.windows, rows["start"])
        return in_window & ~accumulates(trace, rows["op"])


def accumulates(trace: Trace, ops: pl.Series) -> pl.Series:
    """Return which of the ops add up a weight's gradient: those of a graph stay."""
    return fill_false(
        named_like(trace.ops, _ACCUMULATES)[ownership.outermost_ops(trace)[ops]]
    )


@cached_per_trace
def graphed_model(trace: Trace, steady: SteadySteps) -> GraphedModel:
    """Return what a graph of the model replays: its modules, or what has weights.

    Without modules, or with many small ones, it is taken to begin with the first op of
    a forward that has weights and to end with the last, and likewise its backward.
    """
    recorded = trace.ops["module"].null_count() < trace.ops.height
    if recorded:
        model = _of_modules(trace, steady)
        if model.host_share:
            return model
    return replace(_of_weights(trace, steady), is_function=recorded)


def _of_modules(trace: Trace, steady: SteadySteps) -> GraphedModel:
    rows = _outside_optimizer(steady).drop_nulls("module")
    parts = _parts(trace, rows)
    each = pl.lit(
        assumptions.COMPILED_CALL_KERNELS
    ) + assumptions.COMPILED_BACKWARD_KERNELS * pl.col("back")
    calls = (
        rows.group_by("module")
        .agg(kernels=pl.len(), back=(pl.col("phase") == "backward").any())
        .with_columns(part=OUTER_MODULE)
        .join(parts, on="part")
        .group_by("outer")
        .agg(pl.col("kernels").sum(), pl.col("back").any())
        .join(_calls(trace, steady), on="outer", how="left")
        .with_columns(cost=pl.col("calls").fill_null(steady.count) * each)
        # Compiled, a loss or a layer alone takes longer to call than it does now.
        .filter(pl.col("kernels") > pl.col("cost"))
    )
    modules = parts.join(calls, on="outer", how="semi")["part"]
    is_mine = OUTER_MODULE.is_in(modules.implode())
    return GraphedModel(
        modules,
        steady.windows.select("start", "end"),
        rows.filter(is_mine)["id"],
        _host_share(float(calls["cost"].sum()), float(calls["kernels"].sum())),
        _share(_nodes(trace).select(fill_false(is_mine)).to_series()),
    )


def _parts(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return of each module with kernels, ``part``, which one is ``outer``-most.

    A backward that computes layers again calls them without what is around them.
    """
    path = text("module").str.split("/")
    paths = pl.concat([kernels["module"].unique(), trace.ops["module"].unique()])
    parts = paths.unique().drop_nulls().to_frame().select(path, outer=OUTER_MODULE)
    # Of a layer that is called both ways the path with more around it tells.
    return (
        parts.with_columns(depth=pl.int_ranges(pl.col("module").list.len()))
        .explode("module", "depth")
        .group_by(part="module")
        .agg(pl.col("outer").sort_by("depth", "outer").last())
    )


def _of_weights(trace: Trace, steady: SteadySteps) -> GraphedModel:
    windows = _passes(trace, steady)
    rows = _outside_optimizer(steady).drop_nulls("op")
    rows = rows.filter(_during(windows, trace.ops["ts"][rows["op"]]))
    backwards = int(windows["back"].sum())
    cost = assumptions.COMPILED_CALL_KERNELS * (windows.height - backwards)
    nodes = _nodes(trace)
    counted = ~nodes["name"].cast(pl.String).str.contains(_ACCUMULATES)
    return GraphedModel(
        None,
        windows,
        rows["id"],
        _host_share(
            cost + assumptions.COMPILED_BACKWARD_KERNELS * backwards, rows.height
        ),
        _share(_during(windows, nodes["ts"]) & counted),
    )


def _calls(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return how often each outermost module is called in the steps."""
    begin, end = steady.windows["start"].min(), steady.windows["end"].max()
    called = forward_calls(trace).filter(pl.col("ts").is_between(begin, end))
    outer = text("name").str.extract(names.MODULE)
    return called.group_by(outer=outer).agg(calls=pl.len())


def _passes(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return when ops with weights run in a row: ``start``, ``end`` and ``back``.

    Where no op has weights, the steps.
    """
    phases = ("forward", "backward")
    passes = (
        trace.ops[["ts", "dur", "step", "phase"]][
            rows_where(named_like(trace.ops, _WEIGHTS))
        ]
        .filter(text("phase").is_in(phases), pl.col("ts") >= 0)
        .select("ts", END.alias("end"), "step", back=pl.col("phase") == "backward")
        .sort("ts")
    )
    passes = in_steps(passes, trace, steady) if passes.height else passes
    if not passes.height:
        return steady.windows.select("start", "end", back=pl.lit(value=False))
    return (
        passes.group_by(run=pl.struct("step", "back").rle_id())
        .agg(pl.col("back").first(), start=pl.col("ts").min(), end=pl.col("end").max())
        .sort("start")
        .drop("run")
    )


def _nodes(trace: Trace) -> pl.DataFrame:
    """Return what the autograd engine runs."""
    return trace.ops[["name", "ts", "module"]][rows_where(named_like(trace.ops, _NODE))]


def _outside_optimizer(steady: SteadySteps) -> pl.DataFrame:
    kernels = steady.kernels[["id", "op", "module", "phase"]]
    return kernels.filter(~fill_false(kernels["phase"] == "optimizer"))


def _host_share(cost: float, kernels: float) -> float:
    """Return what goes of the host's time, with the cost of calls in kernels."""
    return (
        max(0.0, 1 - assumptions.GRAPH_LAUNCH_SHARE - cost / kernels)
        if kernels
        else 0.0
    )


def _share(are: pl.Series) -> float:
    return float(are.sum()) / max(1, len(are))


def _during(windows: pl.DataFrame, moments: pl.Series) -> pl.Series:
    """Return which moments are in a window."""
    until = intervals.Cover(windows.select("start", "end")).until
    return until(moments + 1) > until(moments)
