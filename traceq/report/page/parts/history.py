"""Runs over time: the trend of each number, with its jumps."""

from __future__ import annotations

from math import ceil, floor
from typing import TYPE_CHECKING, NamedTuple

from traceq.report.history import content as words
from traceq.report.page import charts
from traceq.report.page.section import Section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from traceq.history.jumps import Name
    from traceq.history.series import ExplainedJump, Series
    from traceq.history.store import Run
    from traceq.report.page.charts import Mark, Picture

_WIDTH, _HEIGHT = 980.0, 240.0
_LEFT, _TOP, _BOTTOM, _RIGHT = 70.0, 34.0, 186.0, 965.0
# Room above and below all values, as a share of their range, which is at least this
# share of the highest.
_MARGIN, _LEAST_RANGE = 0.4, 0.02
_FEWEST_RUNS = 2
# More points than the picture has places are thinned out, but never a jump.
_MOST_POINTS = 600
_LONGEST_TABLE = 1_000


class _Trend(NamedTuple):
    """A number that is drawn: its title, its column and its colour."""

    name: Name
    title: str
    column: str
    color: int
    text: Callable[[float], str]


_TRENDS = (
    _Trend("step", "Step time", "step_ns", 1, charts.axis_time),
    _Trend("gpu busy", "GPU busy time of a step", "busy_ns", 2, charts.axis_time),
    _Trend("memory", "Peak memory", "allocated", 3, charts.axis_size),
    _Trend("syncs", "Syncs in a step", "syncs", 4, charts.short),
    _Trend("kernels", "Kernels in a step", "kernels", 5, charts.short),
)


def history_sections(series: Sequence[Series]) -> list[Section]:
    """Return a section for each series: its jumps, its trends and its runs."""
    return [
        Section(
            key=f"history-{number}",
            title=words.series_title(column),
            template="history.html",
            context={
                "jumps": list(words.jump_lines(column)),
                "pictures": list(_pictures(column)),
                "table": words.table(_last(column)),
                "left_out": max(0, len(column.runs) - _LONGEST_TABLE),
            },
        )
        for number, column in enumerate(series, 1)
    ]


def _last(series: Series) -> Series:
    """Return the last runs of a long series."""
    first = max(0, len(series.runs) - _LONGEST_TABLE)
    return series.cut(first)


def _pictures(series: Series) -> Iterator[tuple[str, Picture]]:
    for trend in _TRENDS:
        values = [getattr(run, trend.column) for run in series.runs]
        known = [value for value in values if value is not None]
        # A count that never changed is a line that says nothing.
        same = trend.name in ("syncs", "kernels") and len(set(known)) == 1
        if len(known) >= _FEWEST_RUNS and not same:
            cut = " (axis not from zero)" if _axis(known, trend)[0] else ""
            yield trend.title + cut, _picture(series, trend, values)


def _picture(series: Series, trend: _Trend, values: Sequence[float | None]) -> Picture:
    levels = _axis([value for value in values if value is not None], trend)
    x = charts.Scale(0.0, max(1.0, len(values) - 1.0), _LEFT, _RIGHT)
    y = charts.Scale(levels[0], levels[-1], _BOTTOM, _TOP)
    marks = charts.y_axis(y, y.ticks(levels, trend.text), _LEFT, _RIGHT)
    dates = [
        charts.Tick(x(at), words.date(series.runs[at]))
        for at in range(0, len(values), max(1, len(values) // 6))
    ]
    marks += charts.x_axis(x, dates, _BOTTOM)
    jumps = {jump.jump.at: jump for jump in series.jumps if _is_of(jump, trend)}
    # The step shows all jumps, also those that its noise hides.
    lines = [jump.jump.at for jump in series.jumps] if trend.name == "step" else jumps
    marks += [charts.line(x(at), _TOP - 6, x(at), _BOTTOM, "ridge") for at in lines]
    marks += _levels(series, trend, jumps, x, y)
    every = max(1, len(values) // _MOST_POINTS)
    for at, value in enumerate(values):
        if value is not None and (at % every == 0 or at in jumps):
            marks += _run(series.runs[at], trend, (x(at), y(value)), jumps.get(at))
    return charts.Picture(
        _WIDTH,
        _HEIGHT,
        f"{trend.title} of {len(values)} runs, {len(jumps)} of them with a jump",
        marks,
        wide=True,
    )


def _axis(values: Sequence[float], trend: _Trend) -> list[float]:
    """Return round values around all values: a jump of 4% is to be seen."""
    low, high = min(values), max(values)
    margin = max(high - low, _LEAST_RANGE * high) * _MARGIN
    low, high = max(0.0, low - margin), high + margin
    size = trend.text is charts.axis_size
    ticks = charts.byte_values if size else charts.round_values
    step = ticks(high - low or 1.0, 4)[1]
    first = floor(low / step)
    return [step * at for at in range(first, ceil(high / step) + 1)]


def _is_of(explained_jump: ExplainedJump, trend: _Trend) -> bool:
    return any(shift.number == trend.name for shift in explained_jump.jump.shifts)


def _levels(
    series: Series,
    trend: _Trend,
    jumps: dict[int, ExplainedJump],
    x: charts.Scale,
    y: charts.Scale,
) -> list[Mark]:
    """Return the level between jumps, as a line through the medians."""
    if not jumps:
        return []
    ends = [0, *jumps, len(series.runs) - 1]
    shifts = [
        next(shift for shift in jump.jump.shifts if shift.number == trend.name)
        for jump in jumps.values()
    ]
    levels = [shifts[0].before, *(shift.after for shift in shifts)]
    points = [
        (x(at), y(level))
        for level, first, last in zip(levels, ends, ends[1:], strict=False)
        for at in (first, last)
    ]
    return [charts.path(points, f"fit l{trend.color}")]


def _run(
    run: Run, trend: _Trend, place: tuple[float, float], jump: ExplainedJump | None
) -> list[Mark]:
    value = getattr(run, trend.column)
    why = words.main_cause(jump.difference, jump.jump.shifts) if jump else ""
    tip = charts.tip(
        f"#{run.id} {words.commit(run)}",
        (words.TITLES[trend.name], words.value(trend.name, value)),
        ("date", words.date(run)),
        ("jump", words.jump_numbers(jump) if jump else ""),
        ("cause", why),
        ("run", run.name),
    )
    size = 5.5 if jump else 2.6
    marks = [charts.circle(*place, size, f"dot f{trend.color}", tip)]
    if jump:
        text = f"{words.mark(jump)} #{run.id}"
        marks.append(charts.words(place[0], _TOP - 12, text, "strong", "middle"))
    return marks
