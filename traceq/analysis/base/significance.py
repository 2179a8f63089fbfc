"""Statistical significance of the difference between two series of measurements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Two series of this many have 252 orders, of which two are the most extreme: fewer can
# never be told apart at the level below.
_FEWEST = 5
# Significance level: the rate at which equal series are called different.
_LEVEL = 0.01


@dataclass(frozen=True)
class Difference:
    """The difference between two series."""

    before: float
    """The median of the first series."""
    after: float
    """The median of the second."""
    calls: tuple[int, int]
    chance: float
    """p-value of a rank test (Mann-Whitney): the chance that equal series differ as
    much."""

    @property
    def ratio(self) -> float | None:
        """Ratio of the second series to the first; None if the first is zero."""
        return self.after / self.before if self.before else None

    @property
    def verdict(self) -> str:
        """``real``, ``none`` or ``too few`` to tell."""
        if self.before == self.after:
            return "none"
        if min(self.calls) < _FEWEST:
            return "too few"
        return "real" if self.chance < _LEVEL else "none"


def difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Return the difference of two series, neither of them empty."""
    return Difference(
        median(first),
        median(second),
        (len(first), len(second)),
        _chance(first, second),
    )


def _chance(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p-value of a rank test, by its normal approximation."""
    n, m = len(first), len(second)
    marked = sorted([(value, 0) for value in first] + [(value, 1) for value in second])
    place, ranks, ties = 0, 0.0, 0
    for _, group in groupby(marked, key=lambda one: one[0]):
        same = [of for _, of in group]
        ranks += same.count(0) * (place + (len(same) + 1) / 2)
        ties += len(same) ** 3 - len(same)
        place += len(same)
    above = ranks - n * (n + 1) / 2
    total = n + m
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1) or 1))
    if variance <= 0:
        return 1.0
    # The half is for the steps that a sum of ranks goes in.
    distance = max(0.0, abs(above - n * m / 2) - 0.5)
    return math.erfc(distance / math.sqrt(2 * variance))
