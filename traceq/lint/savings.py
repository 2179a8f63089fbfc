"""What a fix saves: the step replayed with it, against the step replayed without.

A rule says what its finding holds: work on the GPU, time of the host, calls that wait.
Here that becomes a change of the replay, alone and together with others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import polars as pl

from traceq.analysis.replay.bound import GPU_BOUND
from traceq.analysis.replay.simulation import Change, TimeScale
from traceq.intervals import disjoint, spans

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceq.finding import Finding
    from traceq.lint.view import View

# A finding that costs less than this share of the step is worth knowing, no more.
WORTH_FIXING = 0.01
# Of ops that mostly go, the calls that wait go too.
_MOSTLY = 0.5
_MOST_TOGETHER = 5


@dataclass(frozen=True)
class Together:
    """What fixing the worst findings saves together."""

    findings: int
    """How many of them, from the worst on."""
    step_ns: int
    """What a step takes then."""
    least_ns: int
    """The least that it may take then; known only where all are fixed."""
    most_ns: int
    by: Literal["gpu", "host"]
    """What bounds the step then; known only where all are fixed."""


class Worth:
    """The replay of a trace's steps, asked about findings."""

    def __init__(self, view: View, *, brief: bool = False) -> None:
        """Keep the view; what is slow is computed when it is asked for."""
        self._view = view
        self._brief = brief
        self._changes: dict[tuple[object, ...], Change] = {}

    @cached_property
    def _scales(self) -> tuple[TimeScale, ...]:
        """The likely pace, then those of a fast and of a slow host if wanted."""
        found = self._view.calibration
        if self._brief:
            return (found.likely,)
        return tuple(dict.fromkeys((found.likely, found.fast, found.slow)))

    @cached_property
    def _before(self) -> list[float]:
        return [self._view.replay.run(scale=scale).step_ns for scale in self._scales]

    @property
    def step_ns(self) -> float:
        """What a step takes: as measured, else as the replay says it likely does."""
        return self._view.step_ns or self._before[0]

    def priced(self, finding: Finding) -> Finding:
        """Return the finding with what its fix saves per step."""
        change = self._change(finding)
        if not (change.kernels or change.spans.height or change.waits):
            return self._as_said(finding)
        saved = self._saved([change], 1)
        if saved[0] >= WORTH_FIXING * self.step_ns:
            saved = self._saved([change])
        return replace(
            finding,
            cost_ns=saved[0],
            least_ns=min(saved),
            most_ns=max(saved),
        )

    def _as_said(self, finding: Finding) -> Finding:
        """Price a finding that says what it costs, but not what of the trace goes."""
        bound = self._view.bound
        cost = finding.host_ns * self._view.host_scale
        if bound.by != "host":
            cost = max(finding.gpu_ns, 0 if bound.by == "gpu" else cost)
        cost = round(min(cost, self.step_ns))
        return replace(finding, cost_ns=cost, least_ns=cost, most_ns=cost)

    def together(self, findings: Sequence[Finding]) -> Iterator[Together]:
        """Yield what fixing the first, the first two, … of these leaves of a step."""
        changes = [self._change(finding) for finding in findings]
        counts = [*range(1, min(len(changes), _MOST_TOGETHER) + 1)]
        if len(changes) > _MOST_TOGETHER:
            counts.append(len(changes))
        for count in counts:
            yield self._left(changes[:count], last=count == len(changes))

    def _left(self, changes: Sequence[Change], *, last: bool) -> Together:
        """Return what changes leave of a step; the range only for all of them."""
        run, scale = self._view.replay.run, self._scales[0]
        after = run(changes, scale).step_ns
        step = self.step_ns - max(0.0, self._before[0] - after)
        others = self._scales[1:] if last else ()
        steps = [step, *(run(changes, other).step_ns for other in others)]
        by_gpu = run(changes, replace(scale, host=0)).step_ns if last else after
        return Together(
            findings=len(changes),
            step_ns=round(step),
            least_ns=round(min(steps)),
            most_ns=round(max(steps)),
            by="gpu" if by_gpu >= GPU_BOUND * after else "host",
        )

    def _saved(self, changes: Sequence[Change], most: int = 3) -> list[int]:
        """Return what changes save, likely and with a fast and a slow host."""
        calibrate = self._scales[:most]
        return [
            max(0, round(before - self._view.replay.run(changes, scale).step_ns))
            for before, scale in zip(self._before, calibrate, strict=False)
        ]

    def _change(self, finding: Finding) -> Change:
        key = (finding.code, finding.place, finding.subject, finding.message)
        if key not in self._changes:
            self._changes[key] = self._changed(finding)
        return self._changes[key]

    def _changed(self, finding: Finding) -> Change:
        trace, steps = self._view.trace, self._view.steps
        parts = _parts(self._view, finding)
        length = int((parts["end"] - parts["start"]).sum())
        on_gpu = int(trace.kernels["dur"].gather(_ids(finding.kernels)).sum())
        host = min(1.0, finding.host_ns * steps / length) if length else 0.0
        waits = finding.waits
        if host >= _MOSTLY:
            waits |= set(_calls_in(trace.runtime, parts))
        return Change(
            kernels=finding.kernels,
            gpu=min(1.0, finding.gpu_ns * steps / on_gpu) if on_gpu else 0.0,
            spans=parts,
            host=host,
            waits=waits,
        )


def _parts(view: View, finding: Finding) -> pl.DataFrame:
    """Return when the host was at what the finding is about, each instant once."""
    if finding.spans is not None:
        found = finding.spans.select("start", "end")
    elif finding.waits:
        # Such an op stays; it only does not wait.
        found = spans(view.trace.ops.clear())
    else:
        found = pl.concat(
            [
                spans(table.select(pl.col("ts", "dur").gather(_ids(rows))))
                for table, rows in (
                    (view.trace.ops, finding.ops),
                    (view.trace.runtime, finding.calls),
                )
            ]
        )
    return disjoint(found).filter(pl.col("end") > pl.col("start"))


def _ids(rows: frozenset[int]) -> pl.Series:
    """Return ids, which are the rows of their table."""
    return pl.Series(list(rows), dtype=pl.UInt32)


def _calls_in(runtime: pl.DataFrame, parts: pl.DataFrame) -> pl.Series:
    """Return the calls that begin in these spans, which do not overlap."""
    at = parts["start"].search_sorted(runtime["ts"], side="right").cast(pl.Int64) - 1
    ends = parts["end"].gather(at.clip(lower_bound=0)) if parts.height else at
    inside = (at >= 0) & (runtime["ts"] < ends)
    return runtime["id"].filter(inside)
