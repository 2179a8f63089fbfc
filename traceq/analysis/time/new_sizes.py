"""Sizes that a step brings and no step before had: of its inputs, or made by values."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.group_ids import alike
from traceq.analysis.base.ownership import named_like
from traceq.analysis.base.steady import in_steps
from traceq.analysis.time.device_syncs import device_syncs
from traceq.model import names
from traceq.model.tables import COPY

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.model.trace import Trace

# Steps of one program differ by less: in a step that logs, or at the end of an epoch.
# Heuristic threshold.
_OTHER_SHAPES = 0.01
# The kernels of layers with weights, or that mix tokens.
_LAYERS = ("gemm", "conv", "attention")
_CALLED = ("id", "name", "inputs", "ts", "step", "captured", "module")


class NewSizes(NamedTuple):
    """Ops of the last step on sizes that no step before had."""

    ops: pl.Series
    """Their ids, in order; empty if they are few."""
    reads: pl.DataFrame
    """Syncs that read values, which made these sizes; empty if the inputs vary."""


@cached_per_trace
def new_sizes(trace: Trace, steady: SteadySteps) -> NewSizes:
    """Return the ops of the model that launch work on a size no step before had.

    Sizes are made by values where the host read some in the same step, in the model,
    before the first new size: as ``nonzero`` and ``tolist`` do. What the host sends in
    a new size is an input that varies.
    """
    nothing = NewSizes(pl.Series(dtype=pl.UInt32), device_syncs(trace).clear())
    if trace.steps.height < 2 or not trace.facts.shapes:  # noqa: PLR2004 - one is all new
        return nothing
    launching = trace.kernels["op"].drop_nulls().unique().sort()
    # Ops of a replay lie before the trace: the host does not run them.
    ops = trace.ops[[*_CALLED]][launching].filter(~COPY, pl.col("inputs").is_not_null())
    ops = ops.sort("ts", maintain_order=True)
    model = in_model(trace, ops)
    new = _new(trace, steady, model)
    last = steady.windows["step"].max()
    if len(new) <= _OTHER_SHAPES * int((model["step"] == last).sum()):
        return nothing
    sent = trace.kernels["op"].filter(named_like(trace.kernels, names.HTOD))
    inputs = ops.filter(pl.col("id").is_in(sent.drop_nulls().implode()))
    if len(_new(trace, steady, inputs)):
        return nothing._replace(ops=new["id"])
    begins = new["ts"].min()
    reads = in_model(trace, in_steps(device_syncs(trace), trace, steady))
    reads = reads.filter(pl.col("step") == last, pl.col("end") <= begins)
    return NewSizes(new["id"], reads)


def layers_vary(trace: Trace, steady: SteadySteps) -> bool:
    """Return whether steps bring the model's layers a size that no step before had.

    Sizes that are made by values may be of the loss alone, as where it picks elements
    by a mask: they count if a layer of the forward computes with them.
    """
    new, reads = new_sizes(trace, steady)
    if not reads.height:
        return len(new) > 0
    kernels = trace.kernels
    layers = kernels["op"].filter(kernels["kind"].is_in(_LAYERS)).drop_nulls()
    forward = new.filter(trace.ops["phase"][new] != "backward")
    return bool(forward.is_in(layers.implode()).any())


def _new(trace: Trace, steady: SteadySteps, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the first op of the last step of each size that no step before had."""
    shape = trace.inputs["dims_text"].rank("dense")[ops["inputs"]]
    last = ops["step"] == steady.windows["step"].max()
    first = alike(ops["name"], shape).first
    # A module that only the last step runs, as an encoder of images, has no other size.
    again = ops["module"].is_null() | ops["module"].is_in(
        ops["module"].filter(~last).unique().implode()
    )
    return ops[first.filter(last[first] & again[first])]


def in_model(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that are of a module; every row where none was recorded."""
    in_modules = trace.ops["module"].null_count() < trace.ops.height
    return rows.filter(pl.col("module").is_not_null()) if in_modules else rows
