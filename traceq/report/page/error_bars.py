"""Series of a sweep as a picture: points with error bars, laws, and where they meet."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, TypeAlias

from traceq.report.page import charts
from traceq.report.sweep import about
from traceq.report.sweeps import words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.sweep_series import Series, SweepChart
    from traceq.report.page.charts import Mark, Picture, Scale

Log: TypeAlias = Literal["auto", "none", "x", "y", "xy"]
_WIDTH, _HEIGHT = 560.0, 340.0
_LEFT, _TOP, _BOTTOM, _RIGHT = 74.0, 26.0, 292.0, 430.0
_COLORS = (1, 2, 3, 4, 5, 6, 7)
_CURVE = 60
_ROOM = 1.06
_GAP = 26.0
_CAP = 4.0
_MOST_SIZES = 6
# Values that span more than these factors are drawn on log axes. Heuristic thresholds.
_WIDE_X, _WIDE_Y = 8.0, 20.0


def plot(chart: SweepChart, log: Log = "auto") -> Picture:
    """Return the picture of a number over a label, a colour for each series."""
    points = [point for series in chart.series for point in series.points]
    log_x = chart.numeric and _is_log(log, "x", [point.at for point in points], _WIDE_X)
    log_y = _is_log(log, "y", [point.value.mean for point in points], _WIDE_Y)
    x, far = _x_scale(chart, log=log_x)
    y = _y_scale(chart, far, log=log_y)
    marks = _axes(chart, x, y)
    ends = []
    for color, series in _colored(chart.series):
        marks += _series(chart, series, color, (x, y), far)
        ends.append(y(_end(series, far)))
    marks += _meetings(chart, x, y)
    places = charts.apart(ends, _GAP, _TOP, _BOTTOM)
    for (color, series), place in zip(_colored(chart.series), places, strict=True):
        name = f"{chart.by}={series.name}" if chart.by else words.title(chart.number)
        shown = charts.brief(name, 20)
        marks.append(charts.words(_RIGHT + 8, place + 1, shown, f"strong f{color}"))
        law = series.fit.law if series.fit else ""
        marks.append(charts.words(_RIGHT + 8, place + 13, law, "axis-title"))
    scale = {(True, True): ", log axes", (True, False): ", log x axis"}.get(
        (log_x, log_y), ", log y axis" if log_y else ""
    )
    label = f"{words.title(chart.number)} over {chart.over}{scale}"
    return charts.Picture(_WIDTH, _HEIGHT, label, marks)


def _is_log(
    log: Log, axis: Literal["x", "y"], values: Sequence[float], wide: float
) -> bool:
    """Return whether an axis is logarithmic; never where a value is not above zero."""
    if not values or min(values) <= 0:
        return False
    return axis in log if log != "auto" else max(values) / min(values) >= wide


def _colored(series: Sequence[Series]) -> list[tuple[int, Series]]:
    return [(_COLORS[at % len(_COLORS)], column) for at, column in enumerate(series)]


def _x_scale(chart: SweepChart, *, log: bool) -> tuple[Scale, float]:
    values = [point.at for series in chart.series for point in series.points]
    # Laws are drawn beyond what was measured only as far as curves meet there.
    beyond = [meeting.at.at for meeting in chart.meetings if meeting.at.extrapolated]
    far, reach = max([*values, *beyond]), max(beyond, default=0.0)
    if not chart.numeric:
        return charts.Scale(-0.5, far + 0.5, _LEFT, _RIGHT), reach
    if log:
        low, high = min(values), max(far, min(values) * _ROOM)
        room = (high / low) ** 0.05
        return charts.Scale(low / room, high * room, _LEFT, _RIGHT, log=True), reach
    return charts.Scale(min(0.0, *values), far * _ROOM or 1.0, _LEFT, _RIGHT), reach


def _y_scale(chart: SweepChart, far: float, *, log: bool) -> Scale:
    values = [point.value for series in chart.series for point in series.points]
    fits = [_end(series, far) for series in chart.series]
    high = max([*(value.mean + (value.std or 0.0) for value in values), *fits])
    low = min(value.mean - (value.std or 0.0) for value in values)
    if log:
        floor = min(value.mean for value in values)
        return charts.Scale(
            (low if low > 0 else floor) / 1.2, high * 1.2, _BOTTOM, _TOP, log=True
        )
    top = high * _ROOM if high > 0 else 0.0
    empty = top <= 0 <= low
    return charts.Scale(min(0.0, low * _ROOM), 1.0 if empty else top, _BOTTOM, _TOP)


def _axes(chart: SweepChart, x: Scale, y: Scale) -> list[Mark]:
    unit = "" if chart.baseline else chart.number.unit
    if y.log and unit == "bytes":
        values = _powers_of_two(y.low, y.high)
    elif y.log:
        values = charts.decades(y.low, y.high)
        if len(values) < 3:  # noqa: PLR2004 - too few to read values from
            values = charts.decades(y.low, y.high, (1, 2, 5))
    elif unit == "bytes":
        values = charts.byte_values(y.high)
    else:
        below = charts.round_values(-y.low) if y.low < 0 else []
        values = [*(-value for value in below if value), *charts.round_values(y.high)]
    texts = {"ns": charts.axis_time, "bytes": charts.axis_size, "share": _percent}
    ticks = y.ticks(values, texts.get(unit, _plain))
    marks = charts.y_axis(y, ticks, _LEFT, _RIGHT)
    points = [point for series in chart.series for point in series.points]
    places = {point.at: charts.brief(point.text, 16) for point in points}
    labels = [charts.Tick(x(at), places[at]) for at in sorted(places)]
    return marks + charts.x_axis(x, labels, _BOTTOM, chart.over)


def _series(
    chart: SweepChart,
    series: Series,
    color: int,
    scales: tuple[Scale, Scale],
    far: float,
) -> list[Mark]:
    """Return points with error bars, and the law through them or a line."""
    x, y = scales
    low, high = series.points[0].at, series.points[-1].at
    marks = []
    if series.fit:
        marks.append(charts.path(_curve(series, low, high, x, y), f"fit l{color}"))
        if far > high:
            beyond = _curve(series, high, far, x, y)
            marks.append(charts.path(beyond, f"beyond l{color}"))
    elif chart.numeric and len(series.points) > 1:
        line = [(x(point.at), y(point.value.mean)) for point in series.points]
        marks.append(charts.path(line, f"joined l{color}"))
    for point in series.points:
        value, place = point.value, x(point.at)
        if value.std:
            top, bottom = y(value.mean + value.std), y(value.mean - value.std)
            marks += [
                charts.line(place, top, place, bottom, f"fit l{color}"),
                charts.line(place - _CAP, top, place + _CAP, top, f"fit l{color}"),
                charts.line(
                    place - _CAP, bottom, place + _CAP, bottom, f"fit l{color}"
                ),
            ]
        shown = (
            words.ratio_text(value)
            if chart.baseline
            else words.value_text(value, chart.number.unit)
        )
        tip = charts.tip(
            f"{chart.over} {point.text}",
            (f"{chart.by}={series.name}" if chart.by else "value", shown),
            ("relative to", chart.baseline),
            ("n", f"{value.n} {value.of}"),
            ("law", series.fit.law if series.fit else ""),
        )
        marks.append(charts.circle(place, y(value.mean), 4.5, f"dot f{color}", tip))
    return marks


def _meetings(chart: SweepChart, x: Scale, y: Scale) -> list[Mark]:
    marks = []
    for meeting in chart.meetings:
        series = next(each for each in chart.series if each.name == meeting.second)
        law = series.fit if meeting.fitted else None
        height = law.at(meeting.at.at) if law else _at(series, meeting.at.at)
        place = x(meeting.at.at), y(height)
        text = f"≈ {about(meeting.at.at)}"
        text += " (extrapolated)" if meeting.at.extrapolated else ""
        marks += [
            charts.line(place[0], place[1], place[0], _BOTTOM, "ridge"),
            charts.circle(*place, 6, "crossing"),
            charts.words(place[0] - 10, place[1] - 8, text, "strong clear", "end"),
        ]
    return marks


def _at(series: Series, value: float) -> float:
    """Return a series at any value of the label: between its points, or by its law."""
    points = series.points
    for before, after in pairwise(points):
        if before.at <= value <= after.at:
            share = (value - before.at) / (after.at - before.at)
            return before.value.mean + share * (after.value.mean - before.value.mean)
    return series.fit.at(value) if series.fit else points[-1].value.mean


def _end(series: Series, far: float) -> float:
    last = series.points[-1]
    return series.fit.at(max(far, last.at)) if series.fit else last.value.mean


def _curve(
    series: Series, low: float, high: float, x: Scale, y: Scale
) -> list[tuple[float, float]]:
    fit = series.fit
    if fit is None:
        return []
    places = [low + (high - low) * at / _CURVE for at in range(_CURVE + 1)]
    return [(x(place), y(fit.at(place))) for place in places]


def _powers_of_two(low: float, high: float) -> list[float]:
    """Return sizes for a log axis, of which few are enough to read others from.

    >>> _powers_of_two(100.0, 5000.0), _powers_of_two(1.0, 2.0**20)[:3]
    ([128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0], [1.0, 16.0, 256.0])
    """
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    every = math.ceil((last - first + 1) / _MOST_SIZES)
    return [2.0**power for power in range(first, last + 1, max(1, every))]


def _plain(value: float) -> str:
    return words.amount(value, "") if value else "0"


def _percent(value: float) -> str:
    return f"{100 * value:g}%"
