"""What a step takes, does and waits for, before and after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import polars as pl

from traceq.analysis.memory.trace_peak import peak_memory
from traceq.analysis.replay.bound import bound
from traceq.analysis.time.idle_causes import UNKNOWN, idle_causes

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.analysis.replay.bound import Bound
    from traceq.diff.calibration import Scale
    from traceq.diff.steps import Step
    from traceq.diff.structure import Parts
    from traceq.trace import Trace

_MOSTLY = 0.5


@dataclass(frozen=True)
class Bottleneck:
    """What a step waits for."""

    bound: Bound
    host: str
    """What the host does while the GPU idles, if there is such a thing."""


@dataclass(frozen=True)
class Metric:
    """One number of a step; none where the recording does not say."""

    name: Literal[
        "step", "gpu busy", "idle", "launches", "kernels", "waits", "copies", "memory"
    ]
    before: float | None
    after: float | None

    @property
    def change(self) -> float | None:
        """How much more it is after, if both are known."""
        if self.before is None or self.after is None:
            return None
        return self.after - self.before

    @property
    def share(self) -> float | None:
        """How much more it is after, as a share of before."""
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
    found: dict[str, float | None] = {"step": step.ns}
    if not parts.on_host:
        busy = float(rows["busy"].sum()) * scale.busy
        moved = parts.kernels.filter(pl.col("kind") == "copy")
        found |= {
            "gpu busy": busy,
            "idle": max(0.0, step.ns - busy),
            "launches": float(rows["launches"].sum()),
            "kernels": float(rows["kernels"].sum()),
            "waits": float(rows["waits"].sum()),
            "copies": float(moved["kernels"].sum()),
        }
    peak = peak_memory(trace)
    return found | {"memory": float(peak.allocated) if peak else None}


def metrics(
    before: dict[str, float | None], after: dict[str, float | None]
) -> tuple[Metric, ...]:
    """Return both sides' numbers together, those that either knows."""
    names = [name for name in before if before[name] is not None or after.get(name)]
    return tuple(Metric(name, before[name], after.get(name)) for name in names)  # type: ignore[arg-type]  # the names of metrics


def bottleneck(trace: Trace, steady: SteadySteps, step: Step) -> Bottleneck:
    """Return what a step waits for, and what the host does meanwhile."""
    found = bound(steady, trace.facts, round(step.ns) if step.measured else None)
    idle = idle_causes(trace, steady)
    total = int(idle["time"].sum())
    if found.by == "gpu" or not total or idle["time"][0] < _MOSTLY * total:
        return Bottleneck(found, "")
    cause = idle["cause"][0]
    return Bottleneck(found, "" if cause == UNKNOWN else cause)
