"""Sentences on a sweep: values with units, laws and crossings of curves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from traceq.common import units
from traceq.common.safe_text import printable
from traceq.common.words import counted
from traceq.report.sweep import about

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from traceq.analysis.configurations import (
        Configuration,
        Number,
        NumberUnit,
        Value,
    )
    from traceq.analysis.sweep_series import Growth, Meeting, SweepChart
    from traceq.report.sweeps.shown import ShownSweep

_TITLES = {
    "step": "step",
    "peak_memory": "peak memory",
    "tokens_per_s": "tokens/s",
    "mfu": "MFU",
    "tflops_per_s": "TFLOPS",
    "tokens": "tokens per step",
    "flops": "FLOPs per step",
    "parameters": "parameters",
}
_GROWS = {
    "constant": "stays the same",
    "linear": "grows linearly",
    "quadratic": "grows quadratically",
    "cubic": "grows with the cube",
}
_MOST_FINDINGS = 5
_TWO = 2
_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


def title(number: Number) -> str:
    """Return the title of a number's column."""
    return printable(number.name) if number.own else _TITLES[number.name]


def value_text(value: Value | None, unit: NumberUnit) -> str:
    """Write a mean and its standard deviation in one unit.

    >>> from traceq.analysis.configurations import Value
    >>> value_text(Value(1_234_567, 51_000, 3, "runs"), "ns")
    '1.23 ±0.051 ms'
    >>> value_text(Value(0.4123, None, 1, "runs"), "share"), value_text(None, "")
    ('41.2%', '-')
    """
    if value is None:
        return "-"
    text = amount(value.mean, unit)
    if not value.std:  # of what is the same in all runs, as the memory often is
        return text
    number, _, name = text.partition(" ")
    if unit == "share":
        return f"{number.removesuffix('%')} ±{_digits(100 * value.std)}%"
    scale = value.mean / float(number.replace(",", "")) if _is_scaled(number) else 1.0
    spread = f"{number} ±{_digits(value.std / scale)}"
    return f"{spread} {name}" if name else spread


def amount(value: float, unit: NumberUnit) -> str:
    """Write a number in its unit.

    >>> amount(2.5e12, ""), amount(0.25, "share"), amount(1234.5, "per second")
    ('2.5 T', '25.0%', '1,230')
    """
    if unit == "ns":
        return units.time(value)
    if unit == "bytes":
        return units.size(value)
    if unit == "share":
        percent = 100 * value
        return f"{percent:.1f}%" if percent >= 1 or not value else f"{percent:.2g}%"
    if unit == "per second" and abs(value) < _SCALES[-1][0]:
        return f"{units.three_digits(value):,.0f}" if value >= 1 else f"{value:.3g}"
    for size, name in _SCALES:
        if abs(value) >= size:
            return f"{units.three_digits(value / size):g} {name}"
    return units.number(value, 4)


def ratio_text(value: Value | None) -> str:
    """Write a ratio.

    >>> from traceq.analysis.configurations import Value
    >>> ratio_text(Value(0.5216, 0.013, 3, "runs"))
    '0.522 ±0.013'
    """
    if value is None:
        return "-"
    spread = "" if value.std is None else f" ±{_digits(value.std)}"
    return f"{value.mean:.3g}{spread}"


def labels_text(labels: Mapping[str, str]) -> str:
    """Write labels and their values."""
    return printable(" ".join(f"{key}={value}" for key, value in labels.items()))


def sentences(shown: ShownSweep) -> list[str]:
    """Return the sentences on a sweep, the most telling first."""
    return [f"{_begun(text)}." for text in _sentences(shown)]


def _begun(text: str) -> str:
    """Return a sentence with a capital, unless it begins with a label of the user."""
    first = text.split(" ", 1)[0]
    return text if "=" in first else f"{text[:1].upper()}{text[1:]}"


def meeting_text(meeting: Meeting, chart: SweepChart) -> str:
    """Return the sentence on a series that overtakes another."""
    by = f"{chart.by}=" if chart.by else ""
    where = "between measured points"
    if meeting.fitted:
        beyond = meeting.at.extrapolated
        where = "extrapolated by their laws" if beyond else "by their laws"
    more = "takes more than" if chart.number.name == "step" else "is above"
    what = "" if chart.number.name == "step" else f"{title(chart.number)} of "
    return printable(
        f"{what}{by}{meeting.first} {more} {by}{meeting.second} from {chart.over} ≈"
        f" {about(meeting.at.at)} on, {where}"
    )


def growth_text(growth: Growth) -> str:
    """Return the sentence on findings whose cost grows."""
    return printable(
        f"{growth.code} {growth.name} grows with {growth.over}"
        f"{_of(growth.fixed)}: {100 * growth.shares[0]:.1f}% of the step at"
        f" {growth.values[0]}, {100 * growth.shares[-1]:.1f}% at {growth.values[-1]}"
    )


def _sentences(shown: ShownSweep) -> Iterator[str]:
    table = shown.table
    measured = sum(configuration.measured > 0 for configuration in table.configurations)
    left = shown.sweep.planned - len(shown.sweep.runs)
    yield (
        f"{measured} of {counted(len(table.configurations), 'configuration')} measured"
        + (f"; {counted(left, 'run')} not ended yet" if left > 0 else "")
    )
    for chart in shown.charts:
        if chart.number.name == "step":
            yield from _laws(chart)
            yield from _two_series(chart)
        yield from (meeting_text(meeting, chart) for meeting in chart.meetings)
    for chart in shown.ratios:
        if chart.number.name == "step":
            yield from _ratios(chart)
    for item in table.configurations:
        if not item.measured:
            reason = f": {printable(item.reason)}" if item.reason else ""
            happened = _HAPPENED.get(item.status, printable(item.status))
            yield f"{labels_text(item.labels)} {happened}{reason}"
        elif item.measured < item.runs:
            count = item.runs - item.measured
            yield (
                f"{labels_text(item.labels)}: {count} of {item.runs} runs were not"
                f" measured: {printable(item.reason)}"
            )
    above = [
        configuration
        for configuration in table.configurations
        if _above_peak(configuration)
    ]
    if above:
        yield (
            f"the MFU of {labels_text(above[0].labels)} is above 100%: check the FLOPs"
            " and --peak-tflops"
        )
    grown = [growth for growth in shown.growths if growth.grows]
    yield from map(growth_text, grown[:_MOST_FINDINGS])
    reasons = {run.no_peak for run in shown.sweep.runs if run.ok and run.no_peak}
    if reasons and table.number("peak_memory") is None:
        yield f"no peak memory: {printable(min(reasons))}"


def _above_peak(configuration: Configuration) -> bool:
    utilisation = configuration.values.get("mfu")
    return utilisation is not None and utilisation.mean > 1


_HAPPENED = {
    "out of memory": "ran out of memory",
    "timed out": "timed out",
    "not measured": "was not measured",
}


def _laws(chart: SweepChart) -> Iterator[str]:
    for series in chart.series:
        if series.fit:
            name = f" of {chart.by}={series.name}" if chart.by else ""
            error = max(1, math.ceil(100 * series.fit.error))
            begins = series.fit.begins
            start = f" from {about(begins)} on" if begins else ""
            yield printable(
                f"the step{name} {_GROWS[series.fit.law]} with {chart.over}{start}"
                f"{_of(chart.fixed)} (fits within {error}% of the largest)"
            )


def _two_series(chart: SweepChart) -> Iterator[str]:
    """Yield how two series over texts, which have no law, relate to each other."""
    if chart.numeric or len(chart.series) != _TWO or not chart.by:
        return
    first, second = chart.series
    others = {point.text: point.value.mean for point in second.points}
    ratios = [
        (point.value.mean / others[point.text], point.text)
        for point in first.points
        if others.get(point.text)
    ]
    if ratios:
        (low, at), (high, end) = min(ratios), max(ratios)
        most = f" to {high:.0%} ({end})" if at != end else ""
        yield printable(
            f"{chart.by}={first.name} takes {low:.0%} ({at}){most} of the step of"
            f" {chart.by}={second.name}{_of(chart.fixed)}"
        )


def _ratios(chart: SweepChart) -> Iterator[str]:
    for series in chart.series:
        if f"{chart.by}={series.name}" == chart.baseline or not series.points:
            continue
        first, last = series.points[0], series.points[-1]
        name = f"{chart.by}={series.name}" if chart.by else "it"
        yield printable(
            f"{name} takes {last.value.mean:.3g} times the step of {chart.baseline} at"
            f" {chart.over} {last.text}"
            + (
                f", {first.value.mean:.3g} times at {first.text}"
                if first != last
                else ""
            )
        )


def _of(fixed: Mapping[str, str]) -> str:
    return f" ({labels_text(fixed)})" if fixed else ""


def _is_scaled(number: str) -> bool:
    try:
        return float(number.replace(",", "")) != 0
    except ValueError:
        return False


def _digits(value: float) -> str:
    """Write a deviation with two digits.

    >>> _digits(0.05112), _digits(0.3), _digits(123.4), _digits(0)
    ('0.051', '0.3', '120', '0')
    """
    if abs(value) >= 100:  # noqa: PLR2004 - all digits before the point
        return f"{float(f'{value:.2g}'):,.0f}"
    return f"{float(f'{value:.2g}'):g}"
