"""Sweeps: growth of time and memory over recordings that differ in one label.

A sweep has a label whose values are numbers; all other labels are equal. From three
values on, each figure has the law that fits it best, and the point at which a part of
the step overtakes the rest is computed from these laws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import polars as pl

from traceq.analysis.base.scaling_laws import (
    Crossing,
    Fit,
    best_fit,
    crossing,
    label_number,
)
from traceq.analysis.base.steady import steady_steps
from traceq.analysis.memory.trace_peak import peak_memory
from traceq.analysis.patterns.attention_kernels import ATTENTION, kernels_by_part
from traceq.analysis.replay.bound import bound_of
from traceq.analysis.time.tokens_per_step import tokens_per_step
from traceq.common.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceq.model.lint_report import By, StepFrom
    from traceq.model.trace import Trace

Figure = Literal["step", "part", "rest", "memory", "rate"]
TOO_FAR = 0.1
"""A law that misses a point by more than this share of the largest is none."""
_FEW = 2
_MOST_PARTS = 4
# A part that is not more than this share of the GPU's time is not worth a curve.
_WORTH = 0.03
# A part that is this much of the time of a step may be said to overtake the rest.
_TELLING = 0.05


@dataclass(frozen=True)
class Point:
    """One recording of a sweep. Times are nanoseconds of a step."""

    name: str
    labels: Mapping[str, str]
    step_ns: float
    step_from: StepFrom
    bound: By
    gpu_busy: float
    parts: Mapping[str, float]
    """GPU time by part: attention, and the kinds of all other kernels."""
    peak_bytes: int | None = None
    """The most that was allocated."""
    tokens: float | None = None
    """Tokens of a step."""

    @property
    def tokens_per_second(self) -> float | None:
        """The rate of the step without the profiler, where that is known."""
        return self.tokens and self.tokens / self.step_ns * NS_PER_S


@dataclass(frozen=True)
class Curve:
    """A figure at each value of the label."""

    figure: Figure
    name: str
    amounts: tuple[float, ...]
    fit: Fit | None
    """None with fewer than three values, and where no law fits."""


@dataclass(frozen=True)
class Overtaking:
    """A part of the step that is more than another from some value on."""

    part: str
    other: str
    at: Crossing


@dataclass(frozen=True)
class Sweep:
    """Recordings that differ in one label, by its value."""

    label: str
    fixed: Mapping[str, str]
    """The other labels that differ among all recordings, and their values here."""
    values: tuple[float, ...]
    points: tuple[Point, ...]
    curves: tuple[Curve, ...]
    overtakings: tuple[Overtaking, ...]

    @property
    def enough(self) -> bool:
        """True if there are enough distinct values to fit a law."""
        return len(set(self.values)) > _FEW


def point_of(
    trace: Trace,
    labels: Mapping[str, str],
    step_ns: int | None = None,
    peak_bytes: int | None = None,
) -> Point:
    """Return a recording as a point of a sweep.

    ``step_ns`` is measured without the profiler; ``peak_bytes`` is of its snapshot, for
    a trace that does not have what was allocated.
    """
    steady = steady_steps(trace)
    bound = bound_of(trace, step_ns or trace.step_ns)
    parts = (
        kernels_by_part(trace, steady.kernels)
        .group_by("part")
        .agg(pl.col("dur").sum())
        .sort("dur", "part", descending=[True, False])
    )
    peak = peak_memory(trace)
    return Point(
        name=trace.facts.path,
        labels=labels,
        step_ns=bound.step_ns,
        step_from=bound.step_from,
        bound=bound.by,
        gpu_busy=bound.gpu_busy,
        parts={name: dur / steady.count for name, dur in parts.iter_rows()},
        peak_bytes=peak.allocated if peak else peak_bytes,
        tokens=tokens_per_step(trace),
    )


def sweeps(points: Sequence[Point]) -> list[Sweep]:
    """Return a sweep for each label with several numbers for its values.

    Recordings that differ in other labels too are sweeps of their own.
    """
    keys = list(dict.fromkeys(key for point in points for key in point.labels))
    differing = [
        key for key in keys if len({point.labels.get(key) for point in points}) > 1
    ]
    all_sweeps = []
    for key in differing:
        groups: dict[tuple[tuple[str, str], ...], list[tuple[float, Point]]] = {}
        for point in points:
            value = label_number(point.labels.get(key, ""))
            if value is None:
                continue
            fixed = tuple(
                (other, point.labels.get(other, ""))
                for other in differing
                if other != key
            )
            groups.setdefault(fixed, []).append((value, point))
        for fixed, members in groups.items():
            if len({value for value, _ in members}) >= _FEW:
                all_sweeps.append(_sweep(key, dict(fixed), members))
    return all_sweeps


def _sweep(
    label: str, fixed: Mapping[str, str], members: list[tuple[float, Point]]
) -> Sweep:
    members.sort(key=lambda pair: (pair[0], pair[1].name))
    values = tuple(value for value, _ in members)
    points = tuple(point for _, point in members)
    curves = _curves(values, points)
    return Sweep(label, fixed, values, points, curves, _overtakings(values, curves))


def _curves(values: Sequence[float], points: Sequence[Point]) -> tuple[Curve, ...]:
    def curve(figure: Figure, name: str, amounts: Sequence[float]) -> Curve:
        fit = best_fit(values, amounts)
        near = fit if fit and fit.error <= TOO_FAR else None
        return Curve(figure, name, tuple(amounts), near)

    curves = [curve("step", "step", [point.step_ns for point in points])]
    for name in _shown_parts(points):
        amounts = [point.parts.get(name, 0.0) for point in points]
        curves.append(curve("part", name, amounts))
        rest = [
            sum(point.parts.values()) - amount
            for point, amount in zip(points, amounts, strict=True)
        ]
        curves.append(curve("rest", name, rest))
    peaks = [point.peak_bytes for point in points if point.peak_bytes is not None]
    if len(peaks) == len(points):
        curves.append(curve("memory", "peak memory", peaks))
    rates = [rate for point in points if (rate := point.tokens_per_second)]
    if len(rates) == len(points):
        curves.append(curve("rate", "tokens/s", rates))
    return tuple(curves)


def _shown_parts(points: Sequence[Point]) -> list[str]:
    """Return the parts that take the most, by their share at the mean."""
    shares: dict[str, float] = {}
    for point in points:
        whole = sum(point.parts.values()) * len(points) or 1.0
        for name, time in point.parts.items():
            shares[name] = shares.get(name, 0.0) + time / whole
    worth = [name for name, share in shares.items() if share >= _WORTH]
    worth.sort(key=lambda name: (name != ATTENTION, -shares[name]))
    return worth[:_MOST_PARTS]


def _overtakings(
    values: Sequence[float], curves: Sequence[Curve]
) -> tuple[Overtaking, ...]:
    """Return the parts that grow faster than the rest, and where they overtake it."""
    rests = {curve.name: curve for curve in curves if curve.figure == "rest"}
    overtakings = []
    for item in curves:
        rest = rests.get(item.name)
        if item.figure != "part" or rest is None or not item.fit or not rest.fit:
            continue
        if item.amounts[-1] < _TELLING * (item.amounts[-1] + rest.amounts[-1]):
            continue
        met = crossing(item.fit, rest.fit, values)
        if met and met[0] and item.fit.power > rest.fit.power:
            overtakings.append(Overtaking(item.name, "the rest", met[1]))
    return tuple(overtakings)
