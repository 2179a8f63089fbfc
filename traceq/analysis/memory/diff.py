"""Difference of the peaks of two memory snapshots, by category and by line.

Two peaks may lie in different phases of a step, such as backward and optimizer: all
activations are live at one, none at the other. Then the higher peak is compared with
the highest moment of the other snapshot in the same phase.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.callers import PLACE
from traceq.analysis.memory.timeline import category_curves, category_peaks
from traceq.analysis.memory.weight_copies import weight_copies
from traceq.common.expressions import text
from traceq.model.schema import NUMBER, PHASES, Column, Table

if TYPE_CHECKING:
    from traceq.analysis.memory.history import History

_TEXT = pl.String()
_DEVICE = Column(NUMBER, "The GPU's ordinal.")
_PHASE = pl.Enum(PHASES)
_BEFORE = Column(NUMBER, "At the moment before.", "bytes")
_AFTER = Column(NUMBER, "At the moment after.", "bytes")
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
        "phase_before": Column(_PHASE, "Phase of the peak before, if known."),
        "phase_after": Column(_PHASE, "Phase of the peak after, if known."),
        "compared_in": Column(
            _PHASE, "The phase whose highest moments are compared; none if the peaks."
        ),
        "compared_before": Column(NUMBER, "Allocated at the moment before.", "bytes"),
        "compared_after": Column(NUMBER, "Allocated at the moment after.", "bytes"),
    },
)

CATEGORY_CHANGES = Table(
    "What each category adds to the change between the moments; they add up to it.",
    {
        "device": _DEVICE,
        "what": _WHAT,
        "before": _BEFORE,
        "after": _AFTER,
        "change": _CHANGE,
        "most_before": Column(NUMBER, "The most of the category at any time.", "bytes"),
        "most_after": Column(NUMBER, "The same after.", "bytes"),
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
        "count_before": Column(NUMBER, "Allocations at the moment before."),
        "count_after": Column(NUMBER, "Allocations at the moment after."),
    },
)

_WHEN = ("before", "after")
COPIES = "16-bit copies of weights"
_KIND = ["device", "what"]
_SITE = [*_KIND, "file", "function", "op"]


@dataclass(frozen=True)
class MemoryDiff:
    """The change between two moments, mostly the peaks; the largest come first."""

    peaks: pl.DataFrame
    """``PEAK_CHANGES`` has the columns."""
    categories: pl.DataFrame
    """``CATEGORY_CHANGES`` has the columns."""
    sites: pl.DataFrame
    """``SITE_CHANGES`` has the columns."""


def memory_diff(before: History, after: History) -> MemoryDiff:
    """Return the change of the peak from one snapshot to another, and its causes.

    What lived at the peak of one is compared with what lived at the peak of the other,
    or in the same phase if the peaks are in different ones, so that the changes of all
    categories, and of all lines, add up to the change between the two moments.
    """
    histories = [before, after]
    highest = [_highest(history) for history in histories]
    peaks = [_peaks(*both) for both in zip(histories, highest, strict=True)]
    compared = _compared_in(_changed(peaks, ["device"]))
    moments = [_moments(compared, *both) for both in zip(peaks, highest, strict=True)]
    sides = [_live(*both) for both in zip(histories, moments, strict=True)]
    peak_rows = compared
    for when, moment in zip(_WHEN, moments, strict=True):
        amount = moment.select("device", pl.col("held").alias(f"compared_{when}"))
        peak_rows = peak_rows.join(amount, on="device", how="left")
    most = [
        category_peaks(category_curves(history.allocations)) for history in histories
    ]
    return MemoryDiff(
        peaks=PEAK_CHANGES.shaped(peak_rows.fill_null(0).sort("device")),
        categories=_by_category(sides, most),
        sites=_by_site(sides),
    )


def _highest(history: History) -> pl.DataFrame:
    """Return the highest moment of each phase: ``device``, ``phase``, ``event``."""
    phases = history.phases.select("event", "phase").drop_nulls()
    return (
        history.curve.join(phases, on="event", maintain_order="left")
        .sort("device", "phase", -pl.col("allocated"), "event")
        .unique(["device", "phase"], keep="first", maintain_order=True)
        .select("device", "phase", "event", held="allocated")
    )


def _peaks(history: History, highest: pl.DataFrame) -> pl.DataFrame:
    """Return each device's peak, with its phase."""
    phases = highest.select("device", "event", "phase")
    return history.peaks.select(
        "device", "event", held="allocated", reserved="max_reserved"
    ).join(phases, on=["device", "event"], how="left", maintain_order="left")


def _compared_in(changes: pl.DataFrame) -> pl.DataFrame:
    """Add the phase to compare in: that of the higher peak, where they differ."""
    moved = pl.col("phase_before") != pl.col("phase_after")
    higher = pl.when(pl.col("change") > 0).then("phase_after").otherwise("phase_before")
    return changes.with_columns(compared_in=pl.when(moved).then(higher))


def _moments(
    compared: pl.DataFrame, peaks: pl.DataFrame, highest: pl.DataFrame
) -> pl.DataFrame:
    """Return the moment of one side to compare: ``device``, ``event``, ``held``.

    A side that lacks the phase is compared at its peak.
    """
    phases = compared.select("device", phase="compared_in").drop_nulls()
    same = highest.join(phases, on=["device", "phase"], how="semi").drop("phase")
    rest = peaks.select("device", "event", "held").join(same, on="device", how="anti")
    return pl.concat([same, rest]).sort("device")


def _live(history: History, moments: pl.DataFrame) -> pl.DataFrame:
    """Return the allocations that are live at the moments, with their category."""
    live = pl.concat(
        [
            history.allocations.clear(),
            *(history.live(device, event) for device, event, _ in moments.iter_rows()),
        ]
    )
    casts = history.casts.join(
        live.select("device", "alloc").drop_nulls(), on=["device", "alloc"], how="semi"
    )
    copies = weight_copies(live, casts).select("device", "alloc", what=pl.lit(COPIES))
    marked = live.join(copies, on=["device", "alloc"], how="left")
    return marked.select(
        "device",
        pl.coalesce("what", text("category")),
        text("file"),
        text("function"),
        "line",
        pl.coalesce("op", "node").cast(_TEXT).alias("op"),
        "size",
    )


def _by_category(sides: list[pl.DataFrame], most: list[pl.DataFrame]) -> pl.DataFrame:
    sorted_sides = [
        side.sort("size", descending=True, maintain_order=True)
        .group_by(_KIND, maintain_order=True)
        .agg(pl.col(PLACE).first(), held=pl.sum("size"), largest=pl.col("size").first())
        for side in sides
    ]
    rows = _changed(sorted_sides, _KIND).with_columns(
        pl.coalesce(f"{name}_after", f"{name}_before").alias(name) for name in PLACE
    )
    for when, side in zip(_WHEN, most, strict=True):
        ever = side.select(
            "device", pl.col("size").alias(f"most_{when}"), what=text("category")
        )
        rows = rows.join(ever, on=_KIND, how="left")
    return CATEGORY_CHANGES.shaped(_ordered(rows, _KIND))


def _by_site(sides: list[pl.DataFrame]) -> pl.DataFrame:
    sorted_sides = [
        side.sort("size", descending=True, maintain_order=True)
        .group_by(_SITE, maintain_order=True)
        .agg(pl.col("line").first(), held=pl.sum("size"), count=pl.len())
        for side in sides
    ]
    return SITE_CHANGES.shaped(_ordered(_changed(sorted_sides, _SITE), _SITE))


def _changed(sides: list[pl.DataFrame], key: list[str]) -> pl.DataFrame:
    """Join both sides; a row that one side lacks counts as zero there."""
    before, after = (
        side.rename(
            {name: f"{name}_{when}" for name in side.columns if name not in key}
        )
        for side, when in zip(sides, _WHEN, strict=True)
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
