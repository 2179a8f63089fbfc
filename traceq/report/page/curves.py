"""Figures against the value of a label, with the laws that fit them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from traceq.report import sweep as words
from traceq.report.page import charts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from traceq.analysis.base.scaling_laws import Crossing
    from traceq.analysis.sweep import Curve
    from traceq.report.page.charts import Mark, Picture

_WIDTH, _HEIGHT = 560.0, 340.0
_LEFT, _TOP, _BOTTOM, _RIGHT = 70.0, 26.0, 292.0, 440.0
_POINTS = 60
_ROOM = 1.06
_GAP = 26.0


class Line(NamedTuple):
    """A curve as it is drawn."""

    name: str
    curve: Curve
    color: int


class Over(NamedTuple):
    """Horizontal axis of curves: a label, and the recordings by its value."""

    label: str
    values: Sequence[float]
    names: Sequence[str]
    bounds: Sequence[str] = ()
    """Bound of the step of each: gpu or host; empty where there is none."""


def plot(
    over: Over,
    lines: Sequence[Line],
    text: Callable[[float], str],
    met: Sequence[Crossing] = (),
) -> Picture:
    """Return the curves; ``met`` is where the first overtakes the others."""
    far = max([*over.values, *(crossing.at for crossing in met)])
    x = charts.Scale(0.0, far * _ROOM, _LEFT, _RIGHT)
    highest = max(max(item.curve.amounts) for item in lines)
    for entry in met:
        highest = max(
            highest, *(line.curve.fit.at(entry.at) for line in lines if line.curve.fit)
        )
    ticks = charts.byte_values if text is charts.axis_size else charts.round_values
    values = ticks(highest * _ROOM)
    y = charts.Scale(0.0, values[-1], _BOTTOM, _TOP)
    marks = charts.y_axis(y, y.ticks(values, text), _LEFT, _RIGHT)
    places = [
        charts.Tick(x(value), words.value_text(value))
        for value in sorted(set(over.values), reverse=True)
    ]
    marks += charts.x_axis(x, _spaced(places), _BOTTOM, over.label)
    ends = []
    for line in lines:
        marks += _line(over, line, x, y, far)
        ends.append(
            y(line.curve.fit.at(far) if line.curve.fit else line.curve.amounts[-1])
        )
    for entry in met:
        marks += _meeting(entry, lines[0], x, y)
    for line, place in zip(lines, charts.apart(ends, _GAP, _TOP, _BOTTOM), strict=True):
        marks.append(
            charts.words(_RIGHT + 8, place + 1, line.name, f"strong f{line.color}")
        )
        law = line.curve.fit.law if line.curve.fit else ""
        marks.append(charts.words(_RIGHT + 8, place + 13, law, "axis-title"))
    names = ", ".join(line.name for line in lines)
    return charts.Picture(
        _WIDTH,
        _HEIGHT,
        f"{names} against {over.label}",
        marks,
        legend=_legend(over) if lines[0].curve.figure == "step" else (),
    )


def _legend(over: Over) -> list[tuple[str, str]]:
    """Return the sentence on the bounds that the dots of the step show."""
    bounds = set(over.bounds)
    return [
        (look, text)
        for by, look, text in (
            ("gpu", "f0", "GPU-bound step"),
            ("host", "hollow-key", "host-bound step"),
        )
        if by in bounds
    ]


def _spaced(ticks: Sequence[charts.Tick]) -> list[charts.Tick]:
    """Return the ticks whose labels do not collide: the largest values first."""
    spaced: list[charts.Tick] = []
    for tick in ticks:
        if not spaced or spaced[-1].at - tick.at > 8 * len(spaced[-1].label):
            spaced.append(tick)
    return spaced[::-1]


def _line(
    over: Over, line: Line, x: charts.Scale, y: charts.Scale, far: float
) -> list[Mark]:
    """Return the points and the law through them, dashed where nothing was measured."""
    fit, color = line.curve.fit, line.color
    marks = []
    low, high = min(over.values), max(over.values)
    if fit:
        marks.append(charts.path(_curve(fit.at, low, high, x, y), f"fit l{color}"))
        if far > high:
            marks.append(
                charts.path(_curve(fit.at, high, far, x, y), f"beyond l{color}")
            )
    else:
        points = zip(over.values, line.curve.amounts, strict=True)
        marks.append(charts.path([(x(a), y(b)) for a, b in points], f"joined l{color}"))
    write = _tip_text(line.curve)
    bounds = over.bounds or [""] * len(over.values)
    for value, amount, name, bound in zip(
        over.values, line.curve.amounts, over.names, bounds, strict=True
    ):
        tip = charts.tip(
            f"{over.label} {words.value_text(value)}",
            (line.name, write(amount)),
            ("law", words.law(line.curve)),
            ("bound by", {"gpu": "the GPU", "host": "the host"}.get(bound, "")),
            ("recording", name),
        )
        hollow = line.curve.figure == "step" and bound == "host"
        look = f"dot hollow l{color}" if hollow else f"dot f{color}"
        marks.append(charts.circle(x(value), y(amount), 4.5, look, tip))
    return marks


def _tip_text(curve: Curve) -> Callable[[float], str]:
    if curve.figure == "memory":
        return charts.axis_size
    if curve.figure == "rate":
        return words.rate_text
    return charts.axis_time


def _curve(
    law: Callable[[float], float],
    low: float,
    high: float,
    x: charts.Scale,
    y: charts.Scale,
) -> list[tuple[float, float]]:
    places = [low + (high - low) * at / _POINTS for at in range(_POINTS + 1)]
    return [(x(place), y(law(place))) for place in places]


def _meeting(at: Crossing, line: Line, x: charts.Scale, y: charts.Scale) -> list[Mark]:
    """Return the place where attention overtakes the rest."""
    fit = line.curve.fit
    if fit is None:
        return []
    place = (x(at.at), y(fit.at(at.at)))
    text = f"≈ {words.about(at.at)}" + (" (extrapolated)" if at.extrapolated else "")
    return [
        charts.line(place[0], place[1], place[0], _BOTTOM, "ridge"),
        charts.circle(*place, 6, "crossing"),
        charts.words(place[0] - 10, place[1] - 8, text, "strong", "end"),
    ]
