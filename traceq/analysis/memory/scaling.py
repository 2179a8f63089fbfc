"""Scaling of memory with a label of the runs: constant, linear, quadratic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceq.analysis.base.scaling_laws import best_fit
from traceq.analysis.memory.timeline import category_peaks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.memory.summary import MemorySummary

TOTAL = "all at the peak"
# A law holds if its error is nowhere above this share of the largest size.
_EXACT = 0.03
_POWERS = ((1, "linear"), (2, "quadratic"), (3, "cubic"))
_NEARLY = 0.1


@dataclass(frozen=True)
class Growth:
    """Growth of one category with the label's value."""

    category: str
    law: str
    """``constant``, ``linear``, ``quadratic``, ``cubic``, or what is known of it."""
    sizes: tuple[int, ...]
    """The most of it that was live at once, for each value."""


def memory_scaling(
    summaries: Sequence[MemorySummary], values: Sequence[float]
) -> list[Growth]:
    """Return the growth of each category; the summaries are in the order of values."""
    tables = [dict(_peaks(summary)) for summary in summaries]
    names = sorted(
        {name for table in tables for name in table},
        key=lambda name: -tables[-1].get(name, 0),
    )
    totals = tuple(summary.peak["allocated"] for summary in summaries)
    rows = {TOTAL: totals} | {
        name: tuple(table.get(name, 0) for table in tables) for name in names
    }
    return [Growth(name, _law(values, sizes), sizes) for name, sizes in rows.items()]


def _peaks(summary: MemorySummary) -> list[tuple[str, int]]:
    peaks = category_peaks(summary.curves).select("category", "size")
    return [(name, size) for name, size in peaks.iter_rows() if size > 0]


def _law(values: Sequence[float], sizes: Sequence[int]) -> str:
    """Name the law that fits, if one does: sizes are exact, so it must fit closely."""
    largest = max(sizes)
    if largest - min(sizes) <= _EXACT * largest:
        return "constant"
    fit = best_fit(values, sizes)
    if fit is None:
        return _between_two(values, sizes)
    if sizes[values.index(max(values))] < sizes[values.index(min(values))]:
        return "shrinks"
    if fit.error <= _EXACT:
        return fit.law
    return _power(values, sizes) or "no simple law"


def _power(values: Sequence[float], sizes: Sequence[int]) -> str:
    """Return the power between the ends, if it only grows."""
    if list(sizes) != sorted(sizes) or not sizes[0] or values[0] <= 0:
        return ""
    power = math.log(sizes[-1] / sizes[0]) / math.log(values[-1] / values[0])
    return f"to the power of {power:.1f}"


def _between_two(values: Sequence[float], sizes: Sequence[int]) -> str:
    """Name the law between two values, if one is plain."""
    low, high = values.index(min(values)), values.index(max(values))
    if values[low] <= 0 or values[low] == values[high]:
        return "unknown: give more values"
    by = values[high] / values[low]
    for power, name in _POWERS:
        wanted = sizes[low] * by**power
        if sizes[low] and abs(sizes[high] - wanted) <= _NEARLY * wanted:
            return f"likely {name}"
    return "unknown: give a third value"
