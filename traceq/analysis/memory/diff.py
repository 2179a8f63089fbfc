"""Why one memory snapshot's peak is higher than another's: by category and by line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.callers import PLACE
from traceq.expressions import text
from traceq.model.schema import NUMBER, Column, Table

if TYPE_CHECKING:
    from traceq.analysis.memory.history import History

_TEXT = pl.String()
_DEVICE = Column(NUMBER, "The GPU's ordinal.")
_BEFORE = Column(NUMBER, "Of the peak before.", "bytes")
_AFTER = Column(NUMBER, "Of the peak after.", "bytes")
_CHANGE = Column(NUMBER, "After minus before.", "bytes")
_WHAT = Column(_TEXT, "What it is for: a category, or 16-bit copies of weights.")

PEAK_CHANGES = Table(
    "The peak of each device, before and after.",
    {
        "device": _DEVICE,
        "before": Column(NUMBER, "Allocated at the peak before.", "bytes"),
        "after": Column(NUMBER, "Allocated at the peak after.", "bytes"),
        "change": _CHANGE,
        "reserved_before": Column(NUMBER, "The most ever reserved before.", "bytes"),
        "reserved_after": Column(NUMBER, "The most ever reserved after.", "bytes"),
    },
)

CATEGORY_CHANGES = Table(
    "What each category adds to the change of the peak; they add up to it.",
    {
        "device": _DEVICE,
        "what": _WHAT,
        "before": _BEFORE,
        "after": _AFTER,
        "change": _CHANGE,
        "largest_before": Column(NUMBER, "The largest allocation before.", "bytes"),
        "largest_after": Column(NUMBER, "The largest allocation after.", "bytes"),
        "file": Column(_TEXT, "Where the largest one is from: after, or else before."),
        "line": Column(NUMBER, "Its line."),
        "function": Column(_TEXT, "Its function."),
    },
)

SITE_CHANGES = Table(
    "The same by line; a line that moved is matched by function and operator.",
    {
        "device": _DEVICE,
        "what": _WHAT,
        "file": Column(_TEXT, "The user's file, if recorded."),
        "function": Column(_TEXT, "The user's function."),
        "op": Column(_TEXT, "The operator, or the node of autograd."),
        "line_before": Column(NUMBER, "The line before; none if it is new."),
        "line_after": Column(NUMBER, "The line after; none if it is gone."),
        "before": _BEFORE,
        "after": _AFTER,
        "change": _CHANGE,
        "count_before": Column(NUMBER, "Allocations at the peak before."),
        "count_after": Column(NUMBER, "Allocations at the peak after."),
    },
)

COPIES = "16-bit copies of weights"
_KIND = ["device", "what"]
_SITE = [*_KIND, "file", "function", "op"]


@dataclass(frozen=True)
class MemoryDiff:
    """The change of the peak; the largest changes come first."""

    peaks: pl.DataFrame
    """``PEAK_CHANGES`` has the columns."""
    categories: pl.DataFrame
    """``CATEGORY_CHANGES`` has the columns."""
    sites: pl.DataFrame
    """``SITE_CHANGES`` has the columns."""


def memory_diff(before: History, after: History) -> MemoryDiff:
    """Return how the peak changed from one snapshot to another, and why.

    What lived at the peak of one is compared with what lived at the peak of the other,
    so that the changes of all categories, and of all lines, add up to the peak's.
    """
    sides = [_at_peak(history) for history in (before, after)]
    peaks = [
        history.peaks.select("device", held="allocated", reserved="max_reserved")
        for history in (before, after)
    ]
    return MemoryDiff(
        peaks=PEAK_CHANGES.shaped(_changed(peaks, ["device"]).sort("device")),
        categories=_by_category(sides),
        sites=_by_site(sides),
    )


def _at_peak(history: History) -> pl.DataFrame:
    """Return what lived at the peak, with what it is for."""
    copies = history.weight_copies.select("device", "alloc", what=pl.lit(COPIES))
    marked = history.at_peak.join(copies, on=["device", "alloc"], how="left")
    return marked.select(
        "device",
        pl.coalesce("what", text("category")),
        text("file"),
        text("function"),
        "line",
        pl.coalesce("op", "node").cast(_TEXT).alias("op"),
        "size",
    )


def _by_category(sides: list[pl.DataFrame]) -> pl.DataFrame:
    found = [
        side.sort("size", descending=True, maintain_order=True)
        .group_by(_KIND, maintain_order=True)
        .agg(pl.col(PLACE).first(), held=pl.sum("size"), largest=pl.col("size").first())
        for side in sides
    ]
    rows = _changed(found, _KIND).with_columns(
        pl.coalesce(f"{name}_after", f"{name}_before").alias(name) for name in PLACE
    )
    return CATEGORY_CHANGES.shaped(_ordered(rows, _KIND))


def _by_site(sides: list[pl.DataFrame]) -> pl.DataFrame:
    found = [
        side.sort("size", descending=True, maintain_order=True)
        .group_by(_SITE, maintain_order=True)
        .agg(pl.col("line").first(), held=pl.sum("size"), count=pl.len())
        for side in sides
    ]
    return SITE_CHANGES.shaped(_ordered(_changed(found, _SITE), _SITE))


def _changed(sides: list[pl.DataFrame], key: list[str]) -> pl.DataFrame:
    """Join both sides; what one of them lacks holds nothing there."""
    before, after = (
        side.rename(
            {name: f"{name}_{when}" for name in side.columns if name not in key}
        )
        for side, when in zip(sides, ("before", "after"), strict=True)
    )
    joined = before.join(after, on=key, how="full", coalesce=True, nulls_equal=True)
    amounts = pl.selectors.matches("^(held|reserved|count|largest)_")
    return joined.with_columns(amounts.fill_null(0)).select(
        pl.all().exclude("held_before", "held_after"),
        before="held_before",
        after="held_after",
        change=pl.col("held_after").cast(NUMBER) - pl.col("held_before").cast(NUMBER),
    )


def _ordered(rows: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    return rows.sort(
        pl.col("change").abs(), *key, descending=[True, *[False] * len(key)]
    )
