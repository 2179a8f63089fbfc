"""Jumps of a history: changes of a number beyond the noise of neighbouring runs."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from statistics import fmean, median
from typing import TYPE_CHECKING, Literal, NamedTuple

import polars as pl
from msgspec import Struct

from traceq.history.store import Run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


Name = Literal["step", "gpu busy", "idle", "memory", "reserved", "kernels", "syncs"]

NEIGHBOURS = 10
"""Number of runs on either side that a run is compared with."""
# Fewer runs do not show how much runs differ.
_FEWEST = 3
# Of a normal distribution: its deviation from the median and the mean deviation.
_MAD, _MEAN_DEVIATION = 1.4826, 1.2533
# A jump is larger than some standard deviations of single runs, and this many standard
# errors of the two levels. Heuristic: benchmarks/history.py counts false ones.
_ERRORS = 4.0
# Runs that follow each other drift together. So few runs are a jump only if they differ
# by more than runs did before: by this many times what this share of them differed by.
_FEW = 5
_REMEMBERED, _USUAL, _BEYOND_USUAL = 50, 0.95, 1.5
# Share of the runs of a side that are on their side of the middle of a jump.
_APART = 0.75
_MOST_LOOKS = 3
# Numbers whose jumps are this many runs apart changed at once: rough ones, and others.
_NEAR, _AT_ONCE = 6, 2


class Number(NamedTuple):
    """A number of runs that is watched."""

    name: Name
    column: str
    """Column of a run."""
    least: float
    """Least change that matters, as a share of the level."""
    least_of_step: float = 0.0
    """The same as a share of the step."""
    least_count: float = 0.0
    """The same as a count per step."""
    deviations: float = 1.0
    """Standard deviations of single runs that a jump is larger than, at least."""
    rough: bool = False
    """True if the number shows less well than others at which run it changed."""


NUMBERS = (
    Number("step", "step_ns", 0.01, deviations=2.0, rough=True),
    Number("memory", "allocated", 0.01),
    Number("gpu busy", "busy_ns", 0.01),
    Number("idle", "idle_ns", 0.01, 0.01, deviations=2.0, rough=True),
    Number("reserved", "reserved", 0.02),
    Number("syncs", "syncs", 0.1, least_count=0.5),
    Number("kernels", "kernels", 0.02, least_count=0.5),
)
"""Watched numbers, the most important first. Heuristic thresholds: less is not worth a
look, whatever the noise is. The host's time drifts from run to run, the GPU's less."""


_ROUGH = {number.name for number in NUMBERS if number.rough}


class Shift(Struct, frozen=True):
    """A change of one number."""

    number: Name
    before: float
    """Median of the runs before."""
    after: float
    deviation: float
    """Standard deviation of neighbouring runs."""
    limit: float
    """The change that noise alone may make."""

    @property
    def change(self) -> float:
        """The increase."""
        return self.after - self.before


class Jump(Struct, frozen=True):
    """A run from which on numbers are others than before."""

    at: int
    """Index of the first run after it, in its series."""
    first: int
    """Index of the first run since the jump before."""
    last: int
    """Index of the last run before the next jump."""
    shifts: tuple[Shift, ...]
    """The most important number first."""
    confirmed: bool
    """False if only one or two runs show it so far."""

    def moved(self, by: int) -> Jump:
        """Return the jump in a series with more or fewer runs before it."""
        first, last = max(0, self.first + by), self.last + by
        return Jump(self.at + by, first, last, self.shifts, self.confirmed)


def jumps_of(runs: Sequence[Run]) -> list[Jump]:
    """Return the jumps of the runs of one series, in order."""
    by_place: list[tuple[int, Shift]] = []
    for number in NUMBERS:
        known, watched = _watched(runs, number)
        by_place += [(known[at], shift) for at, shift in watched.shifts()]
    return list(_at_once(by_place, len(runs)))


def _at_once(places: Sequence[tuple[int, Shift]], count: int) -> Iterator[Jump]:
    """Yield jumps, with the numbers that changed at once together."""
    groups: dict[int, list[Shift]] = {}
    # The number with the least noise shows best where it is.
    for place, shift in sorted(places, key=_clearness, reverse=True):
        known = [at for at in groups if _belongs(place, shift, at, groups[at])]
        at = min(known, key=lambda start: abs(start - place), default=place)
        groups.setdefault(at, []).append(shift)
    order = [number.name for number in NUMBERS]
    ats = sorted(groups)
    ends = [0, *ats, count]
    for at, first, end in zip(ats, ends, ends[2:], strict=False):
        shifts = sorted(groups[at], key=lambda shift: order.index(shift.number))
        yield Jump(at, first, end - 1, tuple(shifts), confirmed=count - at >= _FEWEST)


def _belongs(place: int, shift: Shift, at: int, others: Sequence[Shift]) -> bool:
    """Return whether a shift is of the jump at another place."""
    if any(other.number == shift.number for other in others):
        return False
    rough = shift.number in _ROUGH and others[0].change * shift.change > 0
    return abs(place - at) <= (_NEAR if rough else _AT_ONCE)


def _clearness(one: tuple[int, Shift]) -> float:
    _, shift = one
    return abs(shift.change) / (shift.limit or 1.0)


class _Watched:
    """The values of one number, in the order of runs."""

    def __init__(
        self,
        number: Number,
        values: Sequence[float],
        errors: Sequence[float],
        least: float,
    ) -> None:
        self._number, self._values, self._least = number, values, least
        self._errors = errors

    def shifts(self) -> list[tuple[int, Shift]]:
        """Return the places and sizes of all jumps."""
        places: list[int] = []
        for near in self._candidates():
            place = self._place(near, places)
            more = sorted({*places, place})
            # Fewer runs between two jumps are no level but noise.
            short = any(after - before < _FEW for before, after in pairwise(more))
            # A jump takes runs from those that were accepted before: all must hold.
            new = place not in places and not short
            if new and all(self._at(start, more) for start in more):
                places = more
        shifts = [(place, self._at(place, places)) for place in places]
        return [(place, shift) for place, shift in shifts if shift]

    def at_end(self) -> Shift | None:
        """Return the shift at the last run, if it is beyond the noise."""
        return self._at(len(self._values) - 1, ())

    def _candidates(self) -> list[int]:
        """Return places near which a jump may be, the largest change first."""
        x = pl.Series(self._values, dtype=pl.Float64)
        if len(x) <= _FEWEST or x.n_unique() == 1:
            return []
        noise = _local_deviation(x)
        change = pl.zeros(len(x), pl.Float64, eager=True)
        for window in (NEIGHBOURS, _FEW):
            before = x.rolling_median(window, min_samples=1).shift(1)
            after = x.reverse().rolling_median(window, min_samples=1).reverse()
            limit = noise * (self._number.deviations + _ERRORS / 2 * sqrt(2 / window))
            seen = (after - before).abs().fill_null(0.0)
            beyond = (seen > limit) & (seen > self._number.least * before.abs())
            change = change.zip_with(~beyond.fill_null(value=False), seen)
        change = change.zip_with(change > self._least, pl.zeros(len(x), eager=True))
        # The best place is looked for around each: of neighbours, the largest will do.
        largest = change.rolling_max(_FEW, min_samples=1, center=True)
        places = ((change > 0) & (change >= largest)).arg_true().to_list()
        return sorted(places, key=lambda at: (-change[at], at))

    def _seen_before(self, place: int, others: Sequence[int]) -> float:
        """Return the change that a few runs showed before, and that did not last."""
        first = max(0, place - _REMEMBERED)
        starts = [first, *(other for other in others if first < other < place), place]
        rests = [
            (values - level).abs()
            for start, end in pairwise(starts)
            for values in [pl.Series(self._values[start:end], dtype=pl.Float64)]
            for level in [
                values.rolling_median(2 * NEIGHBOURS + 1, min_samples=1, center=True)
            ]
        ]
        return _BEYOND_USUAL * (pl.concat(rests).quantile(_USUAL) or 0.0)

    def _around(
        self, place: int, others: Sequence[int], most: int = NEIGHBOURS
    ) -> tuple[int, int]:
        """Return the first and the end of the runs that a place is judged by."""
        low = max((other for other in others if other < place), default=0)
        high = min(
            (other for other in others if other > place), default=len(self._values)
        )
        return max(low, place - most), min(high, place + most)

    def _place(self, near: int, others: Sequence[int]) -> int:
        """Return where two levels fit the runs around a place best."""
        place = near
        # The runs around the best place may have a better one.
        for _ in range(_MOST_LOOKS):
            low, high = self._around(place, others)
            best = min(
                range(low + 1, high),
                key=lambda at: self._misfit(low, at, high),
                default=place,
            )
            if best == place:
                break
            place = best
        return place

    def _misfit(self, low: int, at: int, high: int) -> float:
        before, after = sorted(self._values[low:at]), sorted(self._values[at:high])
        return _distances(before) + _distances(after)

    def _at(self, place: int, others: Sequence[int]) -> Shift | None:
        """Return the shift at a place, if it is beyond the noise.

        Fewer neighbours show it where there is another jump near, as back again.
        """
        shift = self._judged(place, others, NEIGHBOURS)
        return shift or self._judged(place, others, _FEW)

    def _judged(self, place: int, others: Sequence[int], most: int) -> Shift | None:
        low, high = self._around(place, others, most)
        before, after = self._values[low:place], self._values[place:high]
        if len(before) < _FEWEST or not after:
            return None
        levels = median(before), median(after)
        deviation = _deviation(before, after)
        if self._errors:
            deviation = max(deviation, median(self._errors[low:high]))
        errors = sqrt(1 / len(before) + 1 / len(after))
        least = max(self._least, self._number.least * abs(levels[0]))
        limit = max(least, deviation * (self._number.deviations + _ERRORS * errors))
        change = abs(levels[1] - levels[0])
        if change <= limit or not _are_apart(before, after):
            return None
        if min(len(before), len(after)) <= _FEW:
            limit = max(limit, self._seen_before(place, others))
            if change <= limit:
                return None
        return Shift(self._number.name, *levels, deviation, limit)


def _local_deviation(values: pl.Series) -> pl.Series:
    """Return about what the standard deviation of the runs around each run is."""
    window = 2 * NEIGHBOURS
    differences = values.diff().abs()
    level = values.rolling_median(_FEW, min_samples=1, center=True)
    rests = (values - level).abs()
    robust = differences.rolling_median(window, min_samples=1, center=True)
    mean = rests.rolling_mean(window, min_samples=1, center=True)
    frame = pl.DataFrame(
        {"robust": robust * (_MAD / sqrt(2)), "mean": mean * _MEAN_DEVIATION}
    )
    return frame.select(pl.max_horizontal("robust", "mean")).to_series()


def _deviation(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the standard deviation of runs about their levels.

    The larger of three estimates: two are robust against single runs, and the third is
    so that a few runs that agree by chance do not make the noise look small.
    """
    sides = [side for side in (before, after) if len(side) >= _FEWEST]
    rests = [abs(value - median(side)) for side in sides for value in side]
    differences = [abs(b - a) for side in sides for a, b in pairwise(side)]
    count = len(rests)
    few = count / (count - len(sides))
    return max(
        _MAD * median(rests) * few,
        _MEAN_DEVIATION * fmean(rests) * few,
        _MAD / sqrt(2) * median(differences),
    )


def _distances(ordered: Sequence[float]) -> float:
    """Return the sum of the distances of ordered values from their median."""
    half = len(ordered) // 2
    return sum(ordered[len(ordered) - half :]) - sum(ordered[:half])


def _are_apart(before: Sequence[float], after: Sequence[float]) -> bool:
    """Return whether nearly all runs of each side are on their side of the middle."""
    levels = median(before), median(after)
    middle = fmean(levels)
    rising = levels[1] > levels[0]
    shares = (
        fmean((value < middle) == rising for value in before),
        fmean((value > middle) == rising for value in after),
    )
    return min(shares) >= _APART


def deviation_of(values: Sequence[float]) -> float:
    """Return the standard deviation of neighbouring runs, whatever jumps there are."""
    differences = [abs(b - a) for a, b in pairwise(values)]
    return _MAD / sqrt(2) * median(differences) if differences else 0.0


def against(run: Run, earlier: Sequence[Run]) -> list[Shift]:
    """Return the numbers of a run that differ from earlier runs beyond their noise."""
    runs = [*earlier[-_REMEMBERED:], run]
    return [
        shift
        for number in NUMBERS
        if getattr(run, number.column) is not None
        and (shift := _watched(runs, number)[1].at_end())
    ]


def _watched(runs: Sequence[Run], number: Number) -> tuple[list[int], _Watched]:
    """Return the indices of the runs that have a number, and its values."""
    place = Run._fields.index(number.column)
    column: list[float | None] = [run[place] for run in runs]  # type: ignore[misc]  # a number
    known = [at for at, value in enumerate(column) if value is not None]
    values = [value for value in column if value is not None]
    errors = [runs[at].error_ns or 0.0 for at in known] if number.name == "step" else []
    least = number.least_count
    if number.least_of_step:
        steps = [run.step_ns for run in runs if run.step_ns is not None]
        least = max(least, number.least_of_step * (median(steps) if steps else 0.0))
    return known, _Watched(number, values, errors, least)
