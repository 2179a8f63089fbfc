"""The peak of the GPU's memory, from the memory events of a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.common.words import at_function

if TYPE_CHECKING:
    from traceq.model.trace import Trace

_CPU = 0


@dataclass(frozen=True)
class MemoryPeak:
    """The moment at which a GPU held the most memory."""

    device: int
    allocated: int
    reserved: int | None
    """The most ever reserved, at whatever moment."""
    step: int | None
    phase: str | None
    op: str | None
    place: str | None
    """File and line of the op."""


def peaks_by_step(trace: Trace, steps: pl.Series) -> pl.Series:
    """Return the highest peak of all GPUs in each of the steps that have memory events.

    A step in which nothing was allocated or freed has none.
    """
    return (
        trace.memory.filter(
            pl.col("device_type") != _CPU,
            pl.col("allocated").is_not_null(),
            pl.col("step").is_in(steps.implode()),
        )
        .group_by("step")
        .agg(pl.col("allocated").max())
        .sort("step")["allocated"]
    )


def peak_memory(trace: Trace) -> MemoryPeak | None:
    """Return the highest peak of all GPUs; none if memory was not recorded."""
    events = trace.memory.filter(
        pl.col("device_type") != _CPU, pl.col("allocated").is_not_null()
    )
    if not events.height:
        return None
    highest = events.filter(pl.col("allocated") == pl.col("allocated").max())
    peak = highest.sort("ts").row(0, named=True)
    same = events.filter(pl.col("device") == peak["device"])
    reserved = same["reserved"].max()
    op = trace.ops.row(peak["op"], named=True) if peak["op"] is not None else {}
    file, line, function = (op.get(key) for key in ("file", "line", "function"))
    return MemoryPeak(
        device=peak["device"],
        allocated=peak["allocated"],
        reserved=reserved if isinstance(reserved, int) else None,
        step=peak["step"],
        phase=peak["phase"],
        op=op.get("name"),
        place=at_function(file, line, function) if file else None,
    )
