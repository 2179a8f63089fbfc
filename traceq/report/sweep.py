"""Sentences on a sweep over one label: growth laws and crossings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from traceq.analysis.patterns.attention_kernels import ATTENTION
from traceq.common import units
from traceq.common.words import counted
from traceq.report.base.columns import Column
from traceq.report.base.content import TextTable
from traceq.report.diff.causes import KIND_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.analysis.sweep import Curve, Overtaking, Sweep

_GROWS = {
    "constant": "stays the same",
    "linear": "grows linearly",
    "quadratic": "grows quadratically",
    "cubic": "grows with the cube",
}
_BOUND = {"gpu": "GPU-bound", "host": "host-bound"}


def title(sweep: Sweep) -> str:
    """Return the title of a sweep: its label, and the labels that are fixed."""
    fixed = ", ".join(f"{key}={value}" for key, value in sweep.fixed.items() if value)
    return f"Over {sweep.label}" + (f", {fixed}" if fixed else "")


def part_name(part: str) -> str:
    """Return a part of the step as people call it.

    >>> part_name("gemm"), part_name("attention"), part_name("other")
    ('matmuls', 'attention', 'other kernels')
    """
    return KIND_WORDS.get(part, "other kernels" if part == "other" else part)


def sentences(sweep: Sweep) -> list[str]:
    """Return the sentences on a sweep, the most telling first."""
    return [f"{text[:1].upper()}{text[1:]}." for text in _sentences(sweep)]


def overtaking(crossing: Overtaking, label: str) -> str:
    """Return the sentence on a part that overtakes the rest."""
    where = "extrapolated" if crossing.at.extrapolated else "within the sweep"
    return (
        f"{part_name(crossing.part)} overtakes {crossing.other} at {label} ≈"
        f" {about(crossing.at.at)}, {where}"
    )


def about(value: float) -> str:
    """Write a value that is not known exactly, with two digits.

    >>> about(2871.3), about(0.0347), about(96)
    ('2,900', '0.035', '96')
    """
    if not value:
        return "0"
    digits = 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    return f"{rounded:,.0f}" if digits <= 0 else f"{rounded:g}"


def value_text(value: float) -> str:
    """Write a value of a label as it was given.

    >>> value_text(2048), value_text(0.5)
    ('2,048', '0.5')
    """
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"


def rate_text(rate: float) -> str:
    """Write a number of tokens per second, with three digits.

    >>> rate_text(578_029)
    '578,000'
    """
    return f"{units.three_digits(rate):,.0f}"


def table(sweep: Sweep) -> TextTable:
    """Return the figures of each recording, by the label's value."""
    parts = [curve.name for curve in sweep.curves if curve.figure == "part"]
    titles = ["step", *map(part_name, parts), "peak memory", "tokens/s"]
    columns = (
        Column(sweep.label, number=True),
        *(Column(item, number=True) for item in titles),
        Column("bound"),
    )
    rows = tuple(
        (
            value_text(value),
            units.time(point.step_ns),
            *(units.time(point.parts.get(part, 0.0)) for part in parts),
            units.size(point.peak_bytes) if point.peak_bytes is not None else "-",
            rate_text(rate) if (rate := point.tokens_per_second) else "-",
            _BOUND[point.bound],
        )
        for value, point in zip(sweep.values, sweep.points, strict=True)
    )
    return TextTable(columns, rows)


def law(curve: Curve) -> str:
    """Return the law of a curve, short.

    It is empty where there are too few points.
    """
    if curve.fit is None:
        return ""
    return f"{curve.fit.law}, fits within {_within(curve.fit.error)}"


def _sentences(sweep: Sweep) -> Iterator[str]:
    by_figure = {(curve.figure, curve.name): curve for curve in sweep.curves}
    if not sweep.enough:
        yield (
            f"the recordings have {counted(len(set(sweep.values)), 'value')} of"
            f" {sweep.label}: a law needs three"
        )
    part, rest = (by_figure.get((item, ATTENTION)) for item in ("part", "rest"))
    if sweep.enough and part and rest:
        yield (
            f"attention {_grows(part)} with {sweep.label}, and the rest of the GPU's"
            f" time {_grows(rest)}{_quality(part, rest)}"
        )
    for entry in sweep.overtakings:
        yield overtaking(entry, sweep.label)
    yield from _ends(sweep, by_figure["step", "step"], "a step", units.time)
    if memory := by_figure.get(("memory", "peak memory")):
        yield from _ends(sweep, memory, "peak memory", units.size)
    if rate := by_figure.get(("rate", "tokens/s")):
        best = max(range(len(rate.amounts)), key=rate.amounts.__getitem__)
        yield (
            f"most tokens per second, {rate_text(rate.amounts[best])}, at"
            f" {sweep.label} {value_text(sweep.values[best])}"
        )
    yield _bounds(sweep)


def _ends(sweep: Sweep, curve: Curve, name: str, text: object) -> Iterator[str]:
    """Yield the change of a figure from the smallest value to the largest."""
    write = text if callable(text) else str
    first, last = curve.amounts[0], curve.amounts[-1]
    how = f" {_grows(curve)}" if sweep.enough else ""
    yield (
        f"{name}{how}{':' if how else ' takes' if name == 'a step' else ' is'}"
        f" {write(first)} at {value_text(sweep.values[0])}, {write(last)} at"
        f" {value_text(sweep.values[-1])}"
    )


def _grows(curve: Curve) -> str:
    return _GROWS[curve.fit.law] if curve.fit else "follows no simple law"


def _quality(*curves: Curve) -> str:
    fits = [curve.fit for curve in curves if curve.fit]
    if not fits:
        return ""
    errors = " and ".join(_within(fit.error) for fit in fits)
    points = counted(fits[0].points, "point")
    return f" (fits within {errors}, from {points})"


def _within(error: float) -> str:
    """Return a share of a hundred, rounded up: never better than it is."""
    return f"{max(1, math.ceil(100 * error))}%"


def _bounds(sweep: Sweep) -> str:
    """Return from which value on a step is bound by the GPU, or by the host."""
    runs: list[tuple[str, float, float]] = []
    for value, point in zip(sweep.values, sweep.points, strict=True):
        if runs and runs[-1][0] == point.bound:
            runs[-1] = (point.bound, runs[-1][1], value)
        else:
            runs.append((point.bound, value, value))
    if len(runs) == 1:
        return f"all of them are {_BOUND[runs[0][0]]}"
    by, _, last = runs[0]
    texts = [f"{_BOUND[by]} up to {value_text(last)}"]
    texts += [f"{_BOUND[by]} from {value_text(value)} on" for by, value, _ in runs[1:]]
    return f"a step is {', '.join(texts)}"
