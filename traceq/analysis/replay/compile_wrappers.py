"""Host time in the wrappers of compiled code themselves, as stacks record it.

A wrapper only calls: it allocates, launches and views, in a function of up to thousands
of lines. With stacks the profiler looks up the line of each of its calls, which takes
longer in a longer function: up to 20 µs per call, ten times the cost of the calls
otherwise. The wrapper's own time without the profiler is part of the cost of its calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.ownership import named_like
from traceq.analysis.time.host_segments import host_segments
from traceq.common.expressions import known
from traceq.model.owners import GENERATED_FILE

if TYPE_CHECKING:
    from traceq.model.trace import Trace

# What inductor wrote, and what that calls to launch a kernel. While a profiler runs,
# each launch is described to it, in Python.
_WRAPPERS = rf"{GENERATED_FILE.removesuffix('$')}\(|^torch/_inductor/runtime/"


@cached_per_trace
def wrapper_time(trace: Trace) -> pl.DataFrame:
    """Return the spans in which wrappers of compiled code ran themselves.

    ``start`` and ``end``; none where no stacks were recorded.
    """
    wrappers = named_like(trace.frames, _WRAPPERS)
    if not wrappers.any():
        return pl.DataFrame(schema={"start": pl.Int64, "end": pl.Int64})
    host = host_segments(trace)
    of_wrapper = known(wrappers[host.contexts.rows_of("frames")])
    return host.segments[["start", "end"]].filter(host.in_contexts(of_wrapper))
