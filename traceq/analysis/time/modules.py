"""GPU time by module, with layers of one class merged.

A kernel's time belongs to the module of its op. A kernel that inductor fused from ops
of several modules is split among them by the bytes that each op would move by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import named_like
from traceq.analysis.base.steady import are_in_steps
from traceq.analysis.patterns.compilation import without_capture
from traceq.analysis.time.gpu_time import busy_time
from traceq.common.expressions import constant, known, text
from traceq.common.words import layer_names
from traceq.graph.nesting import nearest

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.model.trace import Trace

OPTIMIZER = "Optimizer.step"
COLLECTIVES = "collectives"
UNKNOWN = "not known"
# Regions of compiled code: the forward, and the autograd nodes of its backward.
_COMPILED = (
    r"^(Torch-Compiled Region|CompiledFunction|## Call CompiledFxGraph)"
    r"|evaluate_function: CompiledFunctionBackward$"
)


def by_module(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the GPU's time of a step by module, most first: ``ns`` and ``kernels``.

    Collectives of no module are a row of their own. Empty where no module is known.
    """
    alone = pl.col("communicates") & (pl.col("module") == UNKNOWN)
    name = pl.when(alone).then(pl.lit(COLLECTIVES)).otherwise("module")
    modules = (
        module_parts(trace, steady)
        .with_columns(module=name)
        .group_by("module", "inside")
        .agg(pl.col("ns", "kernels").sum())
        .filter((pl.col("ns") > 0) | (pl.col("kernels") > 0))
        .sort("ns", "module", descending=[True, False])
    )
    return modules if modules["inside"].any() else modules.clear()


def module_parts(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the parts of the kernels of a step, which add up to the GPU's time of it.

    Each has its ``module``, layers of one class together, or what stands for one;
    whether that is ``inside`` of the model; whether it is ``compiled`` and whether it
    ``communicates``; its ``ns`` of a
    step, each instant once; and how many ``kernels`` it is, one for the module that has
    most of it.
    """
    times = busy_time(trace, steady).filter(pl.col("gpu_ns") > 0)
    kernels = trace.kernels.select(
        "id",
        "op",
        module=pl.when(without_capture(trace))
        .then(pl.lit(UNKNOWN))
        .otherwise(_named(trace.kernels)),
        inside=pl.col("module").is_not_null() & (text("phase") != "optimizer"),
        compiled=_compiled(trace),
        communicates=text("kind") == "communication",
        counted=are_in_steps(trace.kernels, trace, steady),
    )
    timed = kernels.join(times, left_on="id", right_on="kernel", how="left").filter(
        pl.col("counted") | (pl.col("gpu_ns") > 0)
    )
    parts = trace.fused.drop_nulls("op").select(
        "op",
        "share",
        part=layer_names(pl.col("module")),
    )
    split = timed.join(parts, on="op", how="left", maintain_order="left").with_columns(
        share=pl.col("share").fill_null(1.0)
    )
    whole = pl.col("share").sum().over("id")
    share = pl.when(whole > 0).then(pl.col("share") / whole).otherwise(1 / pl.len())
    most = pl.col("share") == pl.col("share").max().over("id")
    return split.select(
        module=pl.coalesce("part", "module"),
        inside=pl.col("inside") | pl.col("part").is_not_null(),
        compiled="compiled",
        communicates="communicates",
        ns=pl.col("gpu_ns").fill_null(0) * share / steady.count,
        kernels=(pl.col("counted") & most & pl.struct("id", most).is_first_distinct())
        / steady.count,
    )


def compiles(trace: Trace, steady: SteadySteps) -> bool:
    """Return whether any of the parts of the kernels of a step is compiled."""
    compiled = _compiled(trace)
    if not compiled.any():
        return False
    if (compiled & are_in_steps(trace.kernels, trace, steady)).any():
        return True
    times = busy_time(trace, steady).filter(pl.col("gpu_ns") > 0)
    return bool(compiled[times["kernel"]].any())


def _named(kernels: pl.DataFrame) -> pl.Series:
    """Return the module, or else what stands for it: the optimizer, a function."""
    columns = ["module", "phase", "function", "file"]
    # As text each of them once, not for each kernel.
    distinct = kernels.select(columns).unique()
    named = distinct.with_columns(named=_name(pl.col("module"), pl.col("phase")))
    return kernels.select(columns).join(
        named, on=columns, how="left", nulls_equal=True, maintain_order="left"
    )["named"]


def _name(module: pl.Expr, phase: pl.Expr) -> pl.Expr:
    place = pl.concat_str(
        pl.lit("in "), text("function"), pl.lit(" ("), text("file"), pl.lit(")")
    )
    return (
        pl.when(phase.cast(pl.String) == "optimizer")
        .then(pl.lit(OPTIMIZER))
        .otherwise(pl.coalesce(layer_names(module), place, pl.lit(UNKNOWN)))
    )


def _compiled(trace: Trace) -> pl.Series:
    """Return for each kernel whether compiled code launched it, or a graph of that."""
    ops, kernels = trace.ops, trace.kernels
    marked = named_like(ops, _COMPILED)
    if not marked.any():
        return constant(value=False, count=kernels.height, dtype=pl.Boolean)
    inside = nearest(ops["parent"], marked).is_not_null()
    launched_by = trace.runtime["op"].gather(kernels["launch"])
    return known(inside.gather(launched_by)) | known(inside.gather(kernels["op"]))
