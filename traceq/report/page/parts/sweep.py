"""Recordings that differ in a label, as curves with the laws that fit them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from traceq.analysis.patterns.attention_kernels import ATTENTION
from traceq.report import sweep as words
from traceq.report.page import charts
from traceq.report.page.section import Section

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from traceq.analysis.base.fits import Crossing
    from traceq.analysis.sweep import Curve, Sweep
    from traceq.report.page.charts import Mark, Picture

_WIDTH, _HEIGHT = 560.0, 340.0
_LEFT, _TOP, _BOTTOM, _RIGHT = 70.0, 26.0, 292.0, 440.0
_COLORS = {
    ATTENTION: 2,
    "gemm": 1,
    "softmax": 5,
    "norm": 4,
    "elementwise": 3,
    "copy": 6,
    "conv": 7,
}
_FREE = (4, 6, 5, 3, 7)
_REST = 8
_POINTS = 60
_ROOM = 1.06
_GAP = 26.0


class Line(NamedTuple):
    """A curve as it is drawn."""

    name: str
    curve: Curve
    color: int


def sweep_sections(sweeps: Sequence[Sweep]) -> list[Section]:
    """Return a section for each sweep."""
    return [
        Section(
            key=f"sweep-{number}",
            title=words.title(sweep),
            template="sweep.html",
            context={
                "sentences": words.sentences(sweep),
                "pictures": list(_pictures(sweep)),
                "table": words.table(sweep),
            },
        )
        for number, sweep in enumerate(sweeps, 1)
    ]


def _pictures(sweep: Sweep) -> list[tuple[str, Picture]]:
    by_figure = {(one.figure, one.name): one for one in sweep.curves}
    part, rest = (by_figure.get((one, ATTENTION)) for one in ("part", "rest"))
    found = []
    if part and rest:
        lines = [Line("attention", part, 2), Line("the rest", rest, _REST)]
        title = "GPU time of a step: attention and the rest"
        found.append((title, _plot(sweep, lines, charts.axis_time, crosses=True)))
    lines = _parts(sweep)
    step = [Line("step", by_figure["step", "step"], 0)]
    found.append(
        (
            "A step, and the GPU time of its parts",
            _plot(sweep, step + lines, charts.axis_time),
        )
    )
    if memory := by_figure.get(("memory", "peak memory")):
        line = [Line("peak memory", memory, 3)]
        found.append(("Peak memory", _plot(sweep, line, charts.axis_size)))
    if rate := by_figure.get(("rate", "tokens/s")):
        line = [Line("tokens/s", rate, 1)]
        found.append(("Tokens per second", _plot(sweep, line, charts.short)))
    return found


def _parts(sweep: Sweep) -> list[Line]:
    """Return the parts in colours of their own."""
    parts = [one for one in sweep.curves if one.figure == "part"]
    taken = {_COLORS[one.name] for one in parts if one.name in _COLORS}
    free = iter([color for color in _FREE if color not in taken])
    return [
        Line(words.part_name(one.name), one, _COLORS.get(one.name) or next(free, _REST))
        for one in parts
    ]


def _plot(
    sweep: Sweep,
    lines: Sequence[Line],
    text: Callable[[float], str],
    *,
    crosses: bool = False,
) -> Picture:
    met = [one for one in sweep.overtakings if crosses and one.part == ATTENTION]
    far = max([*sweep.values, *(one.at.at for one in met)])
    x = charts.Scale(0.0, far * _ROOM, _LEFT, _RIGHT)
    highest = max(max(one.curve.amounts) for one in lines)
    for one in met:
        highest = max(
            highest, *(line.curve.fit.at(one.at.at) for line in lines if line.curve.fit)
        )
    ticks = charts.byte_values if text is charts.axis_size else charts.round_values
    values = ticks(highest * _ROOM)
    y = charts.Scale(0.0, values[-1], _BOTTOM, _TOP)
    marks = charts.y_axis(y, y.ticks(values, text), _LEFT, _RIGHT)
    places = [
        charts.Tick(x(value), words.value_text(value))
        for value in sorted(set(sweep.values), reverse=True)
    ]
    marks += charts.x_axis(x, _spaced(places), _BOTTOM, sweep.label)
    ends = []
    for line in lines:
        marks += _line(sweep, line, x, y, far)
        ends.append(
            y(line.curve.fit.at(far) if line.curve.fit else line.curve.amounts[-1])
        )
    for one in met:
        marks += _meeting(one.at, lines[0], x, y)
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
        f"{names} against {sweep.label}",
        marks,
        legend=_legend(sweep) if lines[0].curve.figure == "step" else (),
    )


def _legend(sweep: Sweep) -> list[tuple[str, str]]:
    """Return what the dots of the step say of what bounds it."""
    bounds = {point.bound for point in sweep.points}
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
    found: list[charts.Tick] = []
    for tick in ticks:
        if not found or found[-1].at - tick.at > 8 * len(found[-1].label):
            found.append(tick)
    return found[::-1]


def _line(
    sweep: Sweep, line: Line, x: charts.Scale, y: charts.Scale, far: float
) -> list[Mark]:
    """Return the points and the law through them, dashed where nothing was measured."""
    fit, color = line.curve.fit, line.color
    marks = []
    low, high = min(sweep.values), max(sweep.values)
    if fit:
        marks.append(charts.path(_curve(fit.at, low, high, x, y), f"fit l{color}"))
        if far > high:
            marks.append(
                charts.path(_curve(fit.at, high, far, x, y), f"beyond l{color}")
            )
    else:
        points = zip(sweep.values, line.curve.amounts, strict=True)
        marks.append(charts.path([(x(a), y(b)) for a, b in points], f"joined l{color}"))
    write = _tip_text(line.curve)
    for value, amount, point in zip(
        sweep.values, line.curve.amounts, sweep.points, strict=True
    ):
        tip = charts.tip(
            f"{sweep.label} {words.value_text(value)}",
            (line.name, write(amount)),
            ("law", words.law(line.curve)),
            ("bound by", f"the {'GPU' if point.bound == 'gpu' else 'host'}"),
            ("recording", point.name),
        )
        hollow = line.curve.figure == "step" and point.bound == "host"
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
