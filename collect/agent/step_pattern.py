"""The pattern of a program's step times: steps that take longer, and how often.

An RL program collects a rollout every 16 optimizer steps, others log, evaluate or save
now and then. A trace of three consecutive steps then holds too many of the long ones,
or none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LONG = 1.5  # times the median: a long step
APART = 1.3  # times the slowest of the others: another kind of step, not noise
MATTERS = 0.05  # fraction of the time that the long steps add, below which it is noise
ALIKE = 0.6  # autocorrelation from which on a pattern repeats
REPEATS = 3  # periods that must have been seen
NEARLY = 0.95  # of the best correlation: as good as the best


@dataclass(frozen=True)
class LongSteps:
    """Steps that take much longer than most."""

    share: float
    """Fraction of the steps that are long."""
    ms: float
    """Mean time of a long step."""
    typical_ms: float
    """Mean time of the others."""


def long_steps(laps: list[float]) -> LongSteps | None:
    """Return the long steps among step times in ms; None if all steps are alike."""
    places = long_places(laps)
    if not places:
        return None
    long = [laps[place] for place in places]
    typical = [lap for place, lap in enumerate(laps) if place not in set(places)]
    return LongSteps(
        share=round(len(long) / len(laps), 4),
        ms=round(sum(long) / len(long), 4),
        typical_ms=round(sum(typical) / len(typical), 4),
    )


def long_places(laps: list[float]) -> list[int]:
    """Return which steps are long: a kind of their own, that adds to the time."""
    if not laps:
        return []
    ordered = sorted(laps)
    middle = (len(laps) - 1) // 2
    median = ordered[middle]
    # The widest gap is between the two kinds: a usual step may be long, too.
    gaps = [
        (above / max(below, 1e-6), above)
        for below, above in zip(ordered[middle:], ordered[middle + 1 :])
        if above > LONG * median
    ]
    ratio, least = max(gaps, default=(0.0, 0.0))
    places = [place for place, lap in enumerate(laps) if lap >= least]
    added = sum(laps[place] - median for place in places)
    return places if ratio > APART and added > MATTERS * sum(laps) else []


def period(laps: list[float]) -> int | None:
    """Return after how many steps the pattern of step times repeats.

    That is the smallest lag at which the step times correlate with themselves. None if
    all steps are alike, or the pattern was not seen REPEATS times.
    """
    if not long_places(laps):
        return None
    # Of the logarithm: one step of minutes must not hide the rest.
    values = [math.log(max(lap, 1e-6)) for lap in laps]
    mean = sum(values) / len(values)
    values = [value - mean for value in values]
    longest = len(values) // REPEATS
    results = [(lag, _correlation(values, lag)) for lag in range(2, longest + 1)]
    best = max((value for _, value in results), default=0.0)
    if best < ALIKE:
        return None
    # Multiples of a period correlate as well as the period itself.
    return next(lag for lag, value in results if value >= NEARLY * best)


def _correlation(values: list[float], lag: int) -> float:
    """Return the autocorrelation at one lag, from -1 to 1."""
    early, late = values[:-lag], values[lag:]
    power = math.sqrt(sum(x * x for x in early) * sum(x * x for x in late))
    return sum(x * y for x, y in zip(early, late)) / power if power else 0.0
