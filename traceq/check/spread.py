"""The spread of a number between the steps of a recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

_DIGITS = 3
FEWEST = 2
"""Steps less one, at least, to divide a distance by; and steps that can differ."""


@dataclass(frozen=True)
class Spread:
    """The smallest and the largest value of one number in the steps of a recording."""

    steps: int
    min: float
    max: float

    def limits(self, *values: float) -> tuple[float, float]:
        """Return between which values the number of a new run of the program lies.

        A few steps rarely show the ends of what a program does. Where values are
        spread evenly, the ends are expected this far beyond the smallest and the
        largest of them: the distance of these, divided by the number of steps less
        one. It is half of the distance at most, as two steps tell little. ``values``
        are values that lie between the limits, too.

        >>> Spread(3, 10, 14).limits()
        (8.0, 16.0)
        """
        beyond = (self.max - self.min) / max(FEWEST, self.steps - 1)
        least, most = min((self.min, *values)), max((self.max, *values))
        return tidy(max(0.0, least - beyond)), tidy(most + beyond)

    def joined(self, other: Spread | None) -> Spread:
        """Return the spread over the steps of two recordings of the same program."""
        if other is None:
            return self
        most = max(self.steps, other.steps)
        return Spread(most, min(self.min, other.min), max(self.max, other.max))


def spread_of(values: pl.Series, scale: float = 1.0) -> Spread | None:
    """Return the spread of a number by step; None where all steps have the same.

    ``scale`` is the unit of the number.
    """
    if len(values) < FEWEST or values.n_unique() == 1:
        return None
    least, most = (float(limit) / scale for limit in (values.min(), values.max()))  # type: ignore[arg-type]  # numbers
    return Spread(len(values), tidy(least), tidy(most))


def tidy(value: float) -> float:
    """Return a number as people would write it: whole, or with three digits."""
    rounded = round(value, _DIGITS)
    return int(rounded) if rounded == int(rounded) else rounded
