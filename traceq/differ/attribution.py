"""Attribution of the time of steps: each instant to a kernel, or to a late launch.

While the GPU idles it waits for the next kernel, so an idle gap belongs to the part
that launched that one; unless the host was compiling, loading data, capturing CUDA
graphs or allocating then, or a sync had let the GPU run dry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.gpu_idle import idle_in
from traceq.analysis.time.device_syncs import device_syncs
from traceq.analysis.time.idle_causes import (
    ALLOCATING,
    CAPTURING,
    COMPILING,
    LOADING,
    host_spans,
)
from traceq.common.intervals import overlap

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.model.trace import Trace

SPECIAL = (COMPILING, LOADING, CAPTURING, ALLOCATING)
"""Host activities other than launching; where several overlap, the first counts."""


def idle_time(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the idle gaps of the steps, each with what the GPU waited for.

    ``kernel`` is the one that ends it, none at the end of the trace; ``sync`` the id of
    the sync that had let the GPU run dry, if any. The length is in a column for each of
    SPECIAL, and what is left of it in ``rest``.
    """
    gaps = idle_in(trace, steady.windows)
    covered = gaps["start"] - gaps["start"]
    columns = []
    for last, name in enumerate(SPECIAL, start=1):
        until = overlap(gaps, host_spans(trace, SPECIAL[:last]))
        columns.append((until - covered).alias(name))
        covered = until
    return gaps.with_columns(
        *columns,
        rest=gaps["end"] - gaps["start"] - covered,
        sync=_ended_syncs(trace, gaps),
    )


def _ended_syncs(trace: Trace, gaps: pl.DataFrame) -> pl.Series:
    """Return the sync that ended in each gap and had begun before it, if any."""
    syncs = device_syncs(trace).select("id", "ts", "end").sort("end")
    nothing = pl.repeat(None, gaps.height, dtype=syncs.schema["id"], eager=True)
    if not syncs.height:
        return nothing
    row = syncs["end"].search_sorted(gaps["start"], side="left")
    # Where no sync ends later, the last one does for a comparison that fails.
    row = row.clip(upper_bound=syncs.height - 1)
    ended = syncs["end"].gather(row)
    ran_dry = (
        (ended >= gaps["start"])
        & (ended < gaps["end"])
        & (syncs["ts"].gather(row) <= gaps["start"])
    )
    return syncs["id"].gather(row).zip_with(ran_dry, nothing)
