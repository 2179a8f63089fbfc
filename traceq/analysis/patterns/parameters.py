"""Number of trained parameters, by the gradients that a backward accumulates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import named_like
from traceq.analysis.base.sizes import first_sizes
from traceq.analysis.base.steady import are_in_steps, steady_steps

if TYPE_CHECKING:
    from traceq.model.trace import Trace

_ACCUMULATES = r"^torch::autograd::AccumulateGrad$"


def trained_parameters(trace: Trace) -> int | None:
    """Return how many parameters get a gradient in one backward, on this rank.

    A step may have several backward passes, with forwards between them: the largest
    counts. None without shapes or gradients.
    """
    ops = trace.ops
    steady = are_in_steps(ops, trace, steady_steps(trace))
    gradients = ops.filter(
        named_like(ops, _ACCUMULATES) & steady & ops["inputs"].is_not_null()
    )
    if gradients.is_empty() or not trace.facts.shapes:
        return None
    forwards = ops.filter(ops["phase"] == "forward")["ts"].sort()
    passes = gradients.select(
        "step",
        backward=forwards.search_sorted(gradients["ts"]),
        numel=first_sizes(trace)[gradients["inputs"]],
    )
    sums = passes.group_by("step", "backward").agg(pl.col("numel").sum())
    return int(sums["numel"].sort()[-1]) or None
