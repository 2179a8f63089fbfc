"""Start-up detection: steps that are the first to use the GPU.

The first call that needs a GPU creates its context, and the first use of each kernel
and library loads it. A program does so once, so a step that includes it says nothing
about later steps: one that takes 0.8 ms later took 300 ms at first (H200, 2026-11).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from msgspec import Struct

from traceq.analysis.base.assumptions import (
    CONTEXT_NS,
    CONTEXT_SHARE,
    FIRST_USE_NS,
)
from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.ownership import named_like
from traceq.analysis.base.steady import in_steps, steady_steps
from traceq.common.expressions import END

if TYPE_CHECKING:
    from traceq.model.trace import Trace

# Whichever of these is called first makes the context. So would cudaFree, but that also
# waits for work of the GPU that began before the trace.
_MAKES_CONTEXT = (
    "^(cuda|hip)(DeviceGetStreamPriorityRange|GetDeviceCount|Init|SetDevice)$"
    "|^cu(Init|DevicePrimaryCtxRetain|CtxCreate)"
)
# These take long where they wait for the GPU or move much, in any step.
_NOT_LOADING = ("copy", "set", "sync", "capture")


class StartUp(Struct, frozen=True):
    """One-time work of a program's start that is in the steps."""

    call: str
    """The call that made the context."""
    context_ns: int
    """Duration of that call."""
    loading_ns: int
    """Duration of the other long calls, which load kernels and libraries."""
    loading_calls: int
    """Number of these calls."""


@cached_per_trace
def start_up(trace: Trace) -> StartUp | None:
    """Return the GPU's start-up in the steps, if it takes much of their time."""
    if not (trace.kernels.height and trace.runtime.height):
        return None
    steady = steady_steps(trace)
    calls = trace.runtime[["id", "name", "call", "ts", "dur", "step"]]
    long = in_steps(calls.filter(calls["dur"] >= FIRST_USE_NS), trace, steady)
    context = long.filter(
        named_like(long, _MAKES_CONTEXT),
        pl.col("dur") >= max(CONTEXT_NS, CONTEXT_SHARE * steady.time),
        pl.lit(trace.kernels["ts"].min()) >= END,
    )
    if not context.height:
        return None
    call, context_ns = context.sort("dur").select("name", "dur").row(-1)
    loading = long.filter(
        ~pl.col("call").is_in(_NOT_LOADING),
        ~pl.col("id").is_in(context["id"].implode()),
    )
    return StartUp(call, context_ns, int(loading["dur"].sum()), loading.height)
