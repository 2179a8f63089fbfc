"""Stalls by the profiler and waits between streams: the raw table ``other``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.formats import tables
from traceq.formats.nsys import processes
from traceq.formats.nsys.activities import gpu_lane, integers, thread_lane

if TYPE_CHECKING:
    from traceq.formats.nsys.export import Export
    from traceq.formats.nsys.processes import Process

# The names that Kineto writes for CUPTI's kinds of overhead.
_KINDS = {
    2: "Driver Compiler",
    3: "Buffer Flush",
    4: "Instrumentation",
    5: "Resource",
    6: "Runtime Triggered Module Loading",
    7: "Lazy Function Loading",
    8: "Command Buffer Full",
}
_OWN_KIND = "Instrumentation"
_SYNC_KINDS = {
    1: "Event Sync",
    2: "Stream Wait Event",
    3: "Stream Sync",
    4: "Context Sync",
}
_SPAN = ("start", "end")


def read_stalls(
    export: Export, process: Process, strings: pl.DataFrame
) -> pl.DataFrame:
    """Return the raw table of what fits no other table."""
    del strings
    return pl.concat(
        [_overhead(export, process), _own(export, process), _syncs(export, process)]
    )


def _overhead(export: Export, process: Process) -> pl.DataFrame:
    """Return the stalls that CUPTI reports, the program's and the profiler's."""
    rows = export.read(
        processes.STALLS,
        integers((*_SPAN, "globalTid", "overheadType")),
        process.rows_of(export, processes.STALLS),
    ).drop_nulls("start")
    name = pl.col("overheadType").replace_strict(
        _KINDS, default="Unknown", return_dtype=pl.String
    )
    return _rows(rows, name, thread_lane("globalTid"), "overhead")


def _own(export: Export, process: Process) -> pl.DataFrame:
    """Return the stalls that Nsight Systems reports of itself."""
    rows = export.read(
        processes.OWN_STALLS,
        integers((*_SPAN, "globalTid")),
        process.rows_of(export, processes.OWN_STALLS),
    ).drop_nulls("start")
    name = pl.lit(_OWN_KIND)
    return _rows(rows, name, thread_lane("globalTid"), "overhead")


def _syncs(export: Export, process: Process) -> pl.DataFrame:
    """Return the waits that CUPTI reports: of the host, and of streams for events."""
    columns = ("deviceId", "streamId", "syncType", "eventId", "correlationId")
    rows = export.read(
        processes.SYNCS,
        integers((*_SPAN, *columns)),
        process.rows_of(export, processes.SYNCS),
    ).drop_nulls("start")
    name = pl.col("syncType").replace_strict(
        _SYNC_KINDS, default="Unknown", return_dtype=pl.String
    )
    args = pl.struct(
        device="deviceId",
        stream="streamId",
        event="eventId",
        correlation="correlationId",
    ).struct.json_encode()
    return _rows(rows, name, gpu_lane(), "cuda_sync", args)


def _rows(
    rows: pl.DataFrame,
    name: pl.Expr,
    lane: pl.Expr,
    category: str,
    args: pl.Expr | None = None,
) -> pl.DataFrame:
    length = (pl.col("end") - pl.col("start")).fill_null(0).clip(lower_bound=0)
    no_args = pl.lit(None, pl.String)
    return rows.select(
        lane,
        name=name.cast(pl.Categorical),
        ts="start",
        dur=length,
        args=(no_args if args is None else args).cast(pl.Categorical),
        category=pl.lit(category).cast(pl.Categorical),
    ).select(*tables.dtypes("other"))
