"""Series of a sweep: a number over a label, one curve for each value of another.

Curves have the law that fits them best, and pairs of them the point where one
overtakes the other. Ratios are to the configurations with one value of a label.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from msgspec import Struct

from traceq.analysis.base.scaling_laws import (
    Crossing,
    Fit,
    best_fit,
    crossing,
    label_number,
)
from traceq.analysis.configurations import Value
from traceq.analysis.sweep import TOO_FAR

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceq.analysis.configurations import Configuration, Number, SweepTable

_FEW = 2
# Findings whose cost grows by less than this factor stay the same. Heuristic threshold.
_GROWS = 1.2


class Point(Struct, frozen=True):
    """A number at one value of a label."""

    text: str
    """The label's value."""
    at: float
    """The same as a number, else its place among the values."""
    value: Value


class Series(Struct, frozen=True):
    """A number over a label."""

    name: str
    """Value of the other label; empty if there is none."""
    points: tuple[Point, ...]
    fit: Fit | None
    """None with fewer than three values, over texts, and where no law fits."""


class Meeting(Struct, frozen=True):
    """A series that is more than another from some value of the label on."""

    first: str
    second: str
    at: Crossing
    fitted: bool
    """True if it is where two laws meet; else it is between two measured points."""


class SweepChart(Struct, frozen=True):
    """A number over a label, with a second label as series."""

    number: Number
    over: str
    by: str | None
    fixed: Mapping[str, str]
    """Values of all other labels that differ."""
    numeric: bool
    """True if the values of ``over`` are numbers."""
    series: tuple[Series, ...]
    meetings: tuple[Meeting, ...]
    baseline: str = ""
    """Label and value that the numbers are relative to, as attention=dense."""


class Growth(Struct, frozen=True):
    """Cost of the findings of one rule over a label."""

    code: str
    name: str
    over: str
    fixed: Mapping[str, str]
    values: tuple[str, ...]
    saves_ns: tuple[int, ...]
    shares: tuple[float, ...]
    """Savings as a share of the step."""
    fit: Fit | None

    @property
    def grows(self) -> bool:
        """True if the last value costs clearly more than the first."""
        return self.saves_ns[-1] > max(_GROWS * self.saves_ns[0], 0)


class Cost(Struct, frozen=True):
    """Findings of one rule in one configuration."""

    code: str
    name: str
    saves_ns: int


def usual_over(table: SweepTable) -> str | None:
    """Return the label that numbers are drawn over: of numbers, with most values."""
    different = table.different() or list(table.keys)
    if not different:
        return None
    return max(
        different, key=lambda key: (is_numeric(table, key), len(table.values_of(key)))
    )


def usual_by(table: SweepTable, over: str) -> str | None:
    """Return the label whose values are series: that with the fewest values."""
    others = [key for key in table.different() if key != over]
    return min(others, key=lambda key: len(table.values_of(key)), default=None)


def is_numeric(table: SweepTable, key: str) -> bool:
    """Return whether all values of a label are numbers."""
    return all(label_number(value) is not None for value in table.values_of(key))


def charts(
    table: SweepTable,
    number: Number,
    over: str,
    by: str | None,
    baseline: tuple[str, str] | None = None,
) -> list[SweepChart]:
    """Return a number over a label: a chart for each value of all other labels."""
    fixed_keys = [key for key in table.different() if key not in (over, by)]
    names = table.values_of(by) if by else [""]
    numeric = is_numeric(table, over)
    places = {value: at for at, value in enumerate(table.values_of(over))}
    groups: dict[tuple[str, ...], dict[str, list[Point]]] = {}
    for configuration in table.configurations:
        value = _value_of(table, configuration, number, baseline)
        if value is None:
            continue
        text = configuration.labels.get(over, "")
        fixed = tuple(configuration.labels.get(key, "") for key in fixed_keys)
        name = configuration.labels.get(by, "") if by else ""
        at = (label_number(text) or 0.0) if numeric else float(places[text])
        point = Point(text, at, value)
        curves = groups.setdefault(fixed, {each: [] for each in names})
        curves[name].append(point)
    return [
        _chart(
            number,
            over,
            by,
            dict(zip(fixed_keys, fixed, strict=True)),
            numeric=numeric,
            curves={name: points for name, points in curves.items() if points},
            baseline="=".join(baseline) if baseline else "",
        )
        for fixed, curves in groups.items()
    ]


def growths(
    table: SweepTable,
    over: str,
    costs: Mapping[tuple[str, ...], Sequence[Cost]],
) -> list[Growth]:
    """Return what the findings of each rule cost over a label, the largest first.

    ``costs`` are those of configurations, by the values of their labels; a
    configuration that is not among them has not been linted.
    """
    fixed_keys = [key for key in table.different() if key != over]
    values = table.values_of(over)
    groups: dict[tuple[str, ...], list[Configuration]] = {}
    for configuration in table.configurations:
        if labels_of(table, configuration) in costs and "step" in configuration.values:
            fixed = tuple(configuration.labels.get(key, "") for key in fixed_keys)
            groups.setdefault(fixed, []).append(configuration)
    results = []
    for fixed, members in groups.items():
        members.sort(key=lambda one: values.index(one.labels.get(over, "")))
        if len(members) < _FEW:
            continue
        lists = [costs[labels_of(table, member)] for member in members]
        names = {cost.code: cost.name for each in lists for cost in each}
        labels = dict(zip(fixed_keys, fixed, strict=True))
        results += [
            _growth(code, name, over, labels, members, lists)
            for code, name in names.items()
        ]
    return sorted(results, key=lambda growth: (-growth.shares[-1], growth.code))


def labels_of(table: SweepTable, configuration: Configuration) -> tuple[str, ...]:
    """Return the values of a configuration's labels, in the order of the table."""
    return tuple(configuration.labels.get(key, "") for key in table.keys)


def _growth(  # noqa: PLR0913, PLR0917 - the parts of one row
    code: str,
    name: str,
    over: str,
    fixed: Mapping[str, str],
    members: Sequence[Configuration],
    lists: Sequence[Sequence[Cost]],
) -> Growth:
    saves = [sum(cost.saves_ns for cost in each if cost.code == code) for each in lists]
    values = [member.labels.get(over, "") for member in members]
    places = [label_number(value) for value in values]
    known = [place for place in places if place is not None]
    fit = best_fit(known, saves) if len(known) == len(saves) else None
    steps = [member.values["step"].mean for member in members]
    return Growth(
        code=code,
        name=name,
        over=over,
        fixed=fixed,
        values=tuple(values),
        saves_ns=tuple(saves),
        shares=tuple(one / step for one, step in zip(saves, steps, strict=True)),
        fit=fit if fit and fit.error <= TOO_FAR else None,
    )


def _value_of(
    table: SweepTable,
    configuration: Configuration,
    number: Number,
    baseline: tuple[str, str] | None,
) -> Value | None:
    value = configuration.values.get(number.name)
    if value is None or baseline is None:
        return value
    return ratio(table, configuration, number, baseline)


def ratio(
    table: SweepTable,
    configuration: Configuration,
    number: Number,
    baseline: tuple[str, str],
) -> Value | None:
    """Return a number relative to the configuration that has the baseline's label.

    The relative deviations of both add in squares.
    """
    key, wanted = baseline
    same = {**configuration.labels, key: wanted}
    base = next((other for other in table.configurations if other.labels == same), None)
    value = configuration.values.get(number.name)
    below = base.values.get(number.name) if base else None
    if value is None or below is None or not below.mean:
        return None
    share = value.mean / below.mean
    if base is configuration:
        return Value(1.0, None, value.n, value.of)
    squares = sum(
        (each.std / each.mean) ** 2
        for each in (value, below)
        if each.std is not None and each.mean
    )
    known = value.std is not None or below.std is not None
    return Value(
        share, share * squares**0.5 if known else None, min(value.n, below.n), value.of
    )


def _chart(  # noqa: PLR0913 - the parts of a chart
    number: Number,
    over: str,
    by: str | None,
    fixed: Mapping[str, str],
    *,
    numeric: bool,
    curves: Mapping[str, list[Point]],
    baseline: str,
) -> SweepChart:
    # Ratios follow no such law, and meet where the numbers themselves do.
    fitted = numeric and not baseline
    series = [
        _series(
            name,
            sorted(points, key=lambda point: point.at),
            fitted=fitted,
            floors=number.name == "step",
        )
        for name, points in curves.items()
    ]
    meetings = [
        meeting
        for first, second in combinations(series, 2)
        if fitted and (meeting := _meeting(first, second))
    ]
    return SweepChart(
        number=number,
        over=over,
        by=by,
        fixed=fixed,
        numeric=numeric,
        series=tuple(series),
        meetings=tuple(meetings),
        baseline=baseline,
    )


def _series(name: str, points: list[Point], *, fitted: bool, floors: bool) -> Series:
    fit = None
    if fitted:
        fit = best_fit(
            [point.at for point in points],
            [point.value.mean for point in points],
            floors=floors,
        )
    return Series(name, tuple(points), fit if fit and fit.error <= TOO_FAR else None)


def _meeting(first: Series, second: Series) -> Meeting | None:
    """Return where one series overtakes the other: as measured, else by their laws."""
    values = [point.at for column in (first, second) for point in column.points]
    fits = first.fit, second.fit
    met = crossing(fits[0], fits[1], values) if fits[0] and fits[1] else None
    bracket = _bracket(first, second)
    if bracket is not None:
        low, high, at, above = bracket
        # Of curves that bend, the laws say it better than a line between two points,
        # unless they miss the points by more than the curves differ there.
        fitted = (
            met is not None
            and low <= met[1].at <= high
            and _tells_apart(first, second, low)
            and _tells_apart(first, second, high)
        )
        where = met[1].at if met and fitted else at
        names = (first.name, second.name) if above else (second.name, first.name)
        return Meeting(*names, at=Crossing(where, extrapolated=False), fitted=fitted)
    # Within the sweep, the points themselves say that neither overtakes the other.
    if met is None or not met[1].extrapolated:
        return None
    names = (first.name, second.name) if met[0] else (second.name, first.name)
    return Meeting(*names, at=met[1], fitted=True)


def _bracket(first: Series, second: Series) -> tuple[float, float, float, bool] | None:
    """Return the last two values between which the difference changes its sign.

    With them come the place on a line between the two, and whether the first series is
    above the second from there on. Differences within the noise do not count.
    """
    others = {point.at: point.value for point in second.points}
    differences = [
        (point.at, point.value.mean - others[point.at].mean)
        for point in first.points
        if point.at in others and _differ(point.value, others[point.at])
    ]
    for (low, below), (high, above) in reversed(list(pairwise(differences))):
        if (below > 0) != (above > 0):
            return low, high, low + (high - low) * below / (below - above), above > 0
    return None


def _tells_apart(first: Series, second: Series, place: float) -> bool:
    """Return whether two laws are as near to their points as the points differ."""
    means = [
        next(point.value.mean for point in column.points if point.at == place)
        for column in (first, second)
    ]
    misses = [
        abs(column.fit.at(place) - mean) if column.fit else 0.0
        for column, mean in zip((first, second), means, strict=True)
    ]
    return max(misses) <= abs(means[0] - means[1])


def _differ(value: Value, other: Value) -> bool:
    """Return whether two means differ by more than twice their standard error."""
    squares = sum(
        each.std**2 / each.n
        for each in (value, other)
        if each.std is not None and each.n
    )
    return abs(value.mean - other.mean) > 2 * squares**0.5
