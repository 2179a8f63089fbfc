"""The numbers of a step before and after: times, launches, syncs, copies, memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import polars as pl

from traceq.analysis.memory.trace_peak import peak_memory
from traceq.analysis.time.launch_overhead import launches_per_step

if TYPE_CHECKING:
    from traceq.differ.calibration import Scale
    from traceq.differ.steps import Step
    from traceq.differ.structure import Parts
    from traceq.model.trace import Trace


@dataclass(frozen=True)
class Metric:
    """One number of a step; none where the recording does not have it.

    The last three are of jobs: waiting and transfer are times of a rank, on average.
    """

    name: Literal[
        "step",
        "gpu busy",
        "idle",
        "launches",
        "kernels",
        "syncs",
        "copies",
        "memory",
        "waiting",
        "transfer",
        "slowdown",
    ]
    before: float | None
    after: float | None

    @property
    def change(self) -> float | None:
        """The increase, if both values are known."""
        if self.before is None or self.after is None:
            return None
        return self.after - self.before

    @property
    def share(self) -> float | None:
        """The increase as a share of the value before."""
        change = self.change
        if change is None or self.before is None:
            return None
        if not self.before:
            return 0.0 if not change else float("inf")
        return change / self.before


def numbers_of(
    trace: Trace, parts: Parts, step: Step, scale: Scale
) -> dict[str, float | None]:
    """Return the numbers of one side by the names of metrics."""
    rows = parts.rows
    numbers: dict[str, float | None] = {"step": step.ns}
    if not parts.on_host:
        busy = float(rows["gpu_ns"].sum()) * scale.gpu
        moved = parts.kernels.filter(pl.col("kind") == "copy")
        numbers |= {
            "gpu busy": busy,
            "idle": max(0.0, step.ns - busy),
            "launches": launches_per_step(trace),
            "kernels": float(rows["kernels"].sum()),
            "syncs": float(rows["syncs"].sum()),
            "copies": float(moved["kernels"].sum()),
        }
    peak = peak_memory(trace)
    return numbers | {"memory": float(peak.allocated) if peak else None}


def metrics(
    before: dict[str, float | None], after: dict[str, float | None]
) -> tuple[Metric, ...]:
    """Return the numbers of both sides, of what either has."""
    names = [name for name in before if before[name] is not None or after.get(name)]
    return tuple(Metric(name, before[name], after.get(name)) for name in names)  # type: ignore[arg-type]  # the names of metrics
