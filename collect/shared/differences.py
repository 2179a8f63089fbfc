"""Differences between blocks of steps with and without a remedy, and what they prove.

Nothing here needs torch: the program decides by it what to combine, and the launcher
computes the outcomes of a trial from its blocks, however it ended.
"""

from __future__ import annotations

import math
import statistics
from typing import Any, Iterable

from .figures import digits

CONTROL = "no_op"
RESTARTS = "restarts"
"""The run of blocks that are processes of their own."""
FASTER, SLOWER, NO_DIFFERENCE = "faster", "slower", "no difference"
INCONCLUSIVE, NOT_APPLIED, FAILED = "inconclusive", "not applied", "failed"

FEWEST = 3  # differences, below which nothing is concluded
MANY = 6  # differences from which on their median is used, which outliers do not move
_MEDIAN = 1.25  # deviation of a median, in those of a mean
_NORMAL = 1.4826  # median distance from the median, as a standard deviation
# Neighbours share a plain block: a mean varies more, and less is known of how much.
_SHARED, _LESS = 1.1, 2
_CALMER = 0.7  # of the noise: a figure that is used instead of the median
_LARGE = 0.1  # of the step: a noise that hides what remedies usually save
_PRECISE = 0.01  # of the step: differences below do not matter
_SHARP = 0.2  # of a difference: its interval need not be smaller

# Quantiles of Student's t for intervals of 99%, by degrees of freedom.
_T99 = dict(
    [
        *((1, 63.657), (2, 9.925), (3, 5.841), (4, 4.604), (5, 4.032), (6, 3.707)),
        *((7, 3.499), (8, 3.355), (9, 3.25), (10, 3.169), (12, 3.055), (15, 2.947)),
        *((20, 2.845), (30, 2.75), (60, 2.66), (120, 2.617)),
    ]
)


def centre(values: list[float]) -> float:
    """Return the median of many values, which outliers do not move; else the mean."""
    many = len(values) >= MANY
    return statistics.median(values) if many else statistics.fmean(values)


def _deviation(lists: list[list[float]]) -> float:
    """Return the standard deviation of values around the centre of their own list."""
    if min(map(len, lists)) >= MANY:
        apart = [abs(value - centre(values)) for values in lists for value in values]
        return _NORMAL * statistics.median(apart)
    squares = sum((value - statistics.fmean(v)) ** 2 for v in lists for value in v)
    return math.sqrt(squares / sum(len(values) - 1 for values in lists))


def t99(freedom: int) -> float:
    """Return the quantile for an interval of 99%, rounded up to one that is listed."""
    if freedom < 1:
        return math.inf
    return _T99[max(number for number in _T99 if number <= freedom)]


class Comparison:
    """Blocks with a remedy, each compared with the plain blocks around it."""

    def __init__(self, base: tuple[str, ...], on: tuple[str, ...]) -> None:
        self.base = base
        self.on = on
        self.differences: dict[str, list[float]] = {}
        """Values of a figure with the remedy, less those without it."""

    def values(self, figure: str) -> list[float]:
        """Return the differences of a figure."""
        return self.differences.get(figure, [])

    def centre(self, figure: str) -> float | None:
        """Return the usual difference; None if there is none."""
        values = self.values(figure)
        return centre(values) if values else None


FIGURES = ("median_ms", "mean_ms", "p10_ms", "loss", "gradient_norm", "peak_bytes")


def compare(blocks: list[dict[str, Any]]) -> dict[tuple[str, ...], Comparison]:
    """Return the comparisons of a list of blocks, by base and remedies.

    A block is compared with the mean of the nearest blocks before and after it that
    have the base only, which cancels a steady drift.
    """
    usable = [block for block in blocks if not block.get("discarded")]
    result: dict[tuple[str, ...], Comparison] = {}
    for place, block in enumerate(usable):
        base, on = tuple(block["base"]), tuple(block["on"])
        if on == base:
            continue
        run = block.get("run")
        before = _nearest(reversed(usable[:place]), base, run)
        after = _nearest(usable[place + 1 :], base, run)
        if before is None or after is None:
            continue
        key = (*base, "+", *on)
        comparison = result.setdefault(key, Comparison(base, on))
        for figure in FIGURES:
            values: list[Any] = [each.get(figure) for each in (block, before, after)]
            if all(_is_number(value) for value in values):
                difference = values[0] - (values[1] + values[2]) / 2
                comparison.differences.setdefault(figure, []).append(difference)
    return result


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _nearest(
    blocks: Iterable[dict[str, Any]], base: tuple[str, ...], run: Any
) -> dict[str, Any] | None:
    """Return the next block of a run that has the base only."""
    for block in blocks:
        if tuple(block["base"]) != base or block.get("run") != run:
            return None
        if tuple(block["on"]) == base:
            return block
    return None


class Noise:
    """Noise of one figure: differences between blocks that should not differ."""

    def __init__(self, comparisons: Iterable[Comparison], figure: str) -> None:
        self.figure = figure
        self.freedom = 0
        self.control: float | None = None
        lists = []
        for comparison in comparisons:
            values = comparison.values(figure)
            if len(values) > 1:
                lists.append(values)
                self.freedom += len(values) - 1
            if comparison.on == (CONTROL,):
                self.control = comparison.centre(figure)
        self.deviation = _deviation(lists) if self.freedom else math.inf

    def half_width(self, values: list[float]) -> float:
        """Return half of the interval of 99% for the mean of these differences."""
        if not values or not self.freedom:
            return math.inf
        own = _deviation([values]) if len(values) > 1 else 0.0
        return self._half(max(own, self.deviation), len(values))

    def _half(self, deviation: float, count: int) -> float:
        many = count >= MANY
        freedom = max(1, self.freedom - _LESS)
        # Medians need a wider interval, and their deviation is known less well.
        quantile = t99(max(1, freedom // 2)) * _MEDIAN if many else t99(freedom)
        return _SHARED * quantile * deviation / math.sqrt(count)

    def smallest(self, count: int) -> float:
        """Return the smallest difference that this many blocks can show.

        It is not below what the control seems to save.
        """
        if not self.freedom or not count:
            return math.inf
        return max(self._half(self.deviation, count), abs(self.control or 0.0))


def statistic(blocks: list[dict[str, Any]]) -> str:
    """Return the figure of a block that is compared: the median of its steps.

    Where a busy host makes some steps longer, their 10th percentile varies far less. It
    is chosen by its noise alone, whatever a remedy saves.
    """
    comparisons = compare(blocks).values()
    middle, low = (
        Noise(comparisons, figure).deviation for figure in ("median_ms", "p10_ms")
    )
    return "p10_ms" if low < _CALMER * middle < math.inf else "median_ms"


def is_settled(values: list[float], noise: Noise, step_ms: float) -> bool:
    """Return whether more differences would not change what these prove.

    It depends on the width of their interval only, not on whether it excludes zero: to
    stop once it does would call noise a difference more often.
    """
    if len(values) < FEWEST:
        return False
    half = noise.half_width(values)
    return half < max(_PRECISE * step_ms, _SHARP * abs(centre(values)))


def judge(
    values: list[float], noise: Noise, step_ms: float, predicted: float | None = None
) -> tuple[str, str]:
    """Return the outcome of differences of the step time, and why.

    ``predicted`` is the saving that was expected, in ms: a noise above it hides it.
    """
    count = len(values)
    if count < FEWEST:
        return INCONCLUSIVE, f"{count} blocks were measured, fewer than {FEWEST}"
    half = max(noise.half_width(values), noise.smallest(count))
    middle = centre(values)
    if abs(middle) > half:
        return (FASTER if middle < 0 else SLOWER), ""
    hidden = abs(predicted) if predicted else _LARGE * step_ms
    if half > hidden:
        return INCONCLUSIVE, f"noise {digits(half)} ms"
    return NO_DIFFERENCE, f"above {digits(half)} ms"
