"""Processes of an export: each one with GPU work is a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from msgspec import Struct

from traceq.errors import InputError
from traceq.formats.nsys.export import Filter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.formats.nsys.export import Export

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
STALLS = "CUPTI_ACTIVITY_KIND_OVERHEAD"
OWN_STALLS = "PROFILER_OVERHEAD"
RANGES = "NVTX_EVENTS"
GPU_WORK = (KERNELS, COPIES, SETS, GRAPHS)
# A global id: hardware, virtual machine, then 24 bits of process and 24 of thread.
_THREAD_BITS = 24
_LOW_BITS = 0xFFFFFF
_PID, _TID = "globalPid", "globalTid"
_IDS = {_PID: pl.Int64(), "deviceId": pl.Int64()}


class Process(Struct, frozen=True):
    """One process with GPU work."""

    rank: int
    """Its place among the processes with GPU work, by GPU."""
    key: int | None
    """Its global id without the thread; none if the export has no ids."""
    world_size: int

    @property
    def pid(self) -> int | None:
        """The system's number of the process."""
        return None if self.key is None else self.key & _LOW_BITS

    def rows_of(self, export: Export, table: str) -> Filter | None:
        """Return the filter for the rows of this process in a table."""
        if self.key is None:
            return None
        columns = export.tables.get(table, {})
        for name in (_PID, _TID):
            if name in columns:
                return Filter(name, _THREAD_BITS, self.key)
        return None


def processes(export: Export) -> list[Process]:
    """Return the processes with GPU work, by the lowest GPU that each one uses."""
    seen = pl.concat(
        export.read(table, _IDS, reduce=pl.DataFrame.unique) for table in GPU_WORK
    )
    if seen.is_empty():
        # Without GPU work, whatever called the runtime or was marked.
        columns = {_TID: pl.Int64()}
        calls = pl.concat(
            export.read(table, columns, reduce=pl.DataFrame.unique)
            for table in (CALLS, RANGES)
        )
        seen = calls.select(pl.col(_TID).alias(_PID), deviceId=pl.lit(0, pl.Int64))
    by_process = (
        seen.drop_nulls(_PID)
        .group_by(key=pl.col(_PID) // 2**_THREAD_BITS)
        .agg(device=pl.col("deviceId").min())
        .sort("device", "key", nulls_last=True)
    )
    keys: Sequence[int | None] = by_process["key"].to_list() or [None]
    return [Process(rank, key, len(keys)) for rank, key in enumerate(keys)]


def chosen(export: Export, rank: int | None) -> Process:
    """Return the process of a rank, by default the first."""
    every = processes(export)
    if rank is None:
        return every[0]
    for process in every:
        if process.rank == rank:
            return process
    numbers = ", ".join(str(process.rank) for process in every)
    msg = f"{export.path} has no rank {rank}, the ranks are {numbers}"
    raise InputError(msg)
