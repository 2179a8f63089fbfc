"""When the profiler itself held the host up, where it records that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.expressions import text
from traceq.intervals import count_before, count_until, spans

if TYPE_CHECKING:
    from traceq.trace import Trace

_CATEGORY = "overhead"
# Of what CUPTI calls overhead, what is its own: loading kernels is the program's.
_OF_THE_PROFILER = (
    *("Activity Buffer Request", "Buffer Flush", "Instrumentation", "Resource"),
    "UVM Activity Init",
)


@cached_per_trace
def recorder_stalls(trace: Trace) -> pl.DataFrame:
    """Return when the host stood still for the profiler: ``start`` and ``end``.

    Its records name no thread: where an operator or a call begins meanwhile, the one
    that launches was not held up.
    """
    found = spans(
        trace.other.filter(
            text("category") == _CATEGORY, text("name").is_in(_OF_THE_PROFILER)
        )
    )
    if found.is_empty():
        return found
    begun = pl.concat([trace.host_ops["ts"], trace.runtime["ts"]]).sort()
    before = count_until(begun, found["start"])
    return found.filter(count_before(begun, found["end"]) == before)
