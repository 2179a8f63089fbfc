"""Scaling laws fitted to a few measurements: constant, linear, quadratic or cubic.

A law is a + b·x^p with a ≥ 0 and b ≥ 0: the work has a fixed cost, and more work never
takes less time. The time of a step may also be max(a, b·x^p): small work waits for the
host, which needs the same for any size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ENOUGH = 3
"""Two points are on any line: with fewer than this, nothing is fitted."""
_LAWS = {0: "constant", 1: "linear", 2: "quadratic", 3: "cubic"}
# Differences below this fraction of the largest amount are noise: of two laws this
# close, the one with fewer parameters is taken. Heuristic threshold: the usual
# difference between steps of two runs.
_NOISE = 0.01
# Limit of extrapolated crossings, as a multiple of the largest value.
_FARTHEST = 4.0
_HALVINGS = 60
# Cubes of larger ones are no numbers.
_LARGEST = 1e30


@dataclass(frozen=True)
class Fit:
    """The law that fits best, as ``base + slope * x ** power``.

    With a floor it is the larger of the two parts, not their sum.
    """

    power: int
    base: float
    slope: float
    error: float
    """The largest distance of a point from it, as a share of the largest amount."""
    points: int
    floor: bool = False

    @property
    def begins(self) -> float | None:
        """The value from which it grows; none without a floor."""
        if not self.floor:
            return None
        return float((self.base / self.slope) ** (1 / self.power))

    @property
    def law(self) -> str:
        """The name of the law."""
        return _LAWS[self.power]

    def at(self, value: float) -> float:
        """Return the value of the law at ``x``."""
        grown = self.slope * value**self.power
        return max(self.base, grown) if self.floor else self.base + grown


@dataclass(frozen=True)
class Crossing:
    """The point at which one curve overtakes another."""

    at: float
    extrapolated: bool
    """True if the crossing is outside the measured range."""


def label_number(text: str) -> float | None:
    """Return a label's value as a number that can be computed with; else none.

    >>> label_number("512"), label_number("eager"), label_number("nan")
    (512.0, None, None)
    """
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= _LARGEST else None


def best_fit(
    values: Sequence[float], amounts: Sequence[float], *, floors: bool = False
) -> Fit | None:
    """Return the law with the smallest squared error, with a penalty for parameters.

    None with fewer than three different values. What shrinks fits none of them: its
    error is large. ``floors`` tries laws with a floor, too.
    """
    if len(set(values)) < ENOUGH:
        return None
    fits = [_fitted(values, amounts, power) for power in _LAWS]
    if floors:
        fits += _with_floors(values, amounts)
    return min(fits, key=lambda fit: _score(fit, values, amounts))


def crossing(
    first: Fit, second: Fit, values: Sequence[float]
) -> tuple[bool, Crossing] | None:
    """Return whether ``first`` overtakes ``second`` or the reverse, and where.

    None where neither does from the smallest value to four times the largest.
    """
    low, high = min(values), max(values) * _FARTHEST

    def ahead(value: float) -> float:
        return first.at(value) - second.at(value)

    # Two laws may meet twice: the last meeting is what holds from there on.
    steps = 200
    grid = [low + (high - low) * step / steps for step in range(steps + 1)]
    for start, end in reversed(list(pairwise(grid))):
        if (ahead(start) > 0) != (ahead(end) > 0):
            below, above = start, end
            for _ in range(_HALVINGS):
                middle = (below + above) / 2
                if (ahead(middle) > 0) == (ahead(start) > 0):
                    below = middle
                else:
                    above = middle
            return ahead(end) > 0, Crossing(above, above > max(values))
    return None


def _fitted(values: Sequence[float], amounts: Sequence[float], power: int) -> Fit:
    """Return the least-squares law of this power, with no negative coefficient."""
    base, slope = _line([value**power for value in values], amounts)
    if slope < 0 or power == 0:
        base, slope = sum(amounts) / len(amounts), 0.0
    elif base < 0:
        terms = [value**power for value in values]
        base = 0.0
        slope = sum(x * y for x, y in zip(terms, amounts, strict=True)) / sum(
            x * x for x in terms
        )
    return _with_error(Fit(power, base, slope, 0.0, len(values)), values, amounts)


def _with_floors(values: Sequence[float], amounts: Sequence[float]) -> list[Fit]:
    """Return laws with a floor: of the smaller values, two or more are on it."""
    pairs = sorted(zip(values, amounts, strict=True))
    fits = []
    for count in range(2, len(pairs) - 1):
        base = sum(amount for _, amount in pairs[:count]) / count
        for power in _LAWS:
            terms = [(value**power, amount) for value, amount in pairs[count:]]
            slope = sum(x * y for x, y in terms) / (sum(x * x for x, _ in terms) or 1.0)
            fit = Fit(power, base, slope, 0.0, len(pairs), floor=True)
            low, high = pairs[count - 1][0], pairs[count][0]
            if power and slope > 0 and base > 0 and low <= (fit.begins or 0.0) <= high:
                fits.append(_with_error(fit, values, amounts))
    return fits


def _with_error(fit: Fit, values: Sequence[float], amounts: Sequence[float]) -> Fit:
    distances = (
        abs(fit.at(value) - amount)
        for value, amount in zip(values, amounts, strict=True)
    )
    return replace(fit, error=max(distances) / (max(map(abs, amounts)) or 1.0))


def _line(terms: Sequence[float], amounts: Sequence[float]) -> tuple[float, float]:
    count = len(terms)
    middle, mean = sum(terms) / count, sum(amounts) / count
    spread = sum((term - middle) ** 2 for term in terms)
    if not spread:
        return mean, 0.0
    together = sum(
        (term - middle) * (amount - mean)
        for term, amount in zip(terms, amounts, strict=True)
    )
    slope = together / spread
    return mean - slope * middle, slope


def _score(fit: Fit, values: Sequence[float], amounts: Sequence[float]) -> float:
    """Return the Bayesian information criterion, with a floor under the error."""
    count = len(values)
    largest = max(map(abs, amounts)) or 1.0
    squares = sum(
        ((fit.at(value) - amount) / largest) ** 2
        for value, amount in zip(values, amounts, strict=True)
    )
    parameters = 1 if fit.power == 0 else 2
    return count * math.log(squares / count + _NOISE**2) + parameters * math.log(count)
