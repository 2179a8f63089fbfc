"""Summary of one device of a snapshot, as `traceq memory` shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.base.callers import PLACE
from traceq.analysis.memory.categories import CONFIDENCE
from traceq.analysis.memory.fragmentation import Fragmentation, fragmentation
from traceq.analysis.memory.leaks import memory_leaks
from traceq.analysis.memory.oom import failures
from traceq.analysis.memory.parts import by_part
from traceq.analysis.memory.timeline import category_curves

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from traceq.analysis.memory.history import History
    from traceq.model.run import Run
    from traceq.model.snapshot import SnapshotFacts


@dataclass(frozen=True)
class MemorySummary:
    """One device of a snapshot."""

    facts: SnapshotFacts
    device: int
    name: str
    """The path that was given, with rank and device if there are several."""
    peak: dict[str, Any]
    """A row of ``PEAKS``, with the ``step`` and ``phase`` in which it was reached."""
    categories: pl.DataFrame
    """Live at the peak: ``category``, ``size``, ``count``, ``largest``, and how much of
    it is ``certain``, ``likely`` and a ``guess``."""
    parts: pl.DataFrame
    """Live at the peak by ``category`` and ``part`` of the model: ``size``, ``count``,
    ``largest`` with its ``op`` and place."""
    modules: pl.DataFrame | None
    """Live at the peak by ``module`` and ``category``; none without a trace."""
    places: pl.DataFrame
    """Live at the peak by the user's line: place, ``category``, ``size``, ``count``."""
    largest: pl.DataFrame
    """The largest allocations at the peak; equal ones are one row with a ``count``."""
    steps: pl.DataFrame
    """Highest and lowest allocated memory of each ``step``: ``highest``, ``lowest``."""
    leaks: pl.DataFrame
    """Leaks per step; ``LEAKS`` has the columns."""
    failures: pl.DataFrame
    """Allocations that failed; ``FAILURES`` has the columns."""
    fragmentation: Fragmentation
    settings: dict[str, str]
    phases: pl.DataFrame
    """Step and phase of each event; ``EVENT_PHASES`` has the columns."""
    curve: pl.DataFrame
    curves: pl.DataFrame
    """Live memory by category over time; ``CATEGORY_CURVES`` has the columns."""
    run: Run | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the recording, as the user gave them."""


def summarise_memory(
    history: History,
    name: str,
    *,
    run: Run | None = None,
    labels: Mapping[str, str] | None = None,
) -> Iterator[MemorySummary]:
    """Yield a summary for each device that has memory.

    Unless given, ``labels`` are those of the run.
    """
    snapshot = history.snapshot
    leaks, failed = memory_leaks(history), failures(history)
    curves = category_curves(history.allocations)
    peaks = history.peaks.filter(pl.col("max_reserved") > 0)
    for peak in peaks.iter_rows(named=True):
        here = pl.col("device") == peak["device"]
        live, curve = history.at_peak.filter(here), history.curve.filter(here)
        yield MemorySummary(
            facts=snapshot.facts,
            device=peak["device"],
            name=f"{name}, device {peak['device']}" if peaks.height > 1 else name,
            peak=peak | _moment(history.phases, peak["event"]),
            categories=_categories(live),
            parts=by_part(live),
            modules=_by(live, ["module"]) if history.trace else None,
            places=_by(live, list(PLACE)),
            largest=_largest(live),
            steps=history.steps_of_curve.filter(here).drop("device"),
            leaks=leaks.filter(here),
            failures=failed.filter(here),
            fragmentation=fragmentation(history, peak),
            settings=dict(snapshot.settings.iter_rows()),
            phases=history.phases,
            curve=curve,
            curves=curves.filter(here),
            run=run,
            labels=(run.labels if run else {}) if labels is None else labels,
        )


def _moment(phases: pl.DataFrame, event: int | None) -> dict[str, Any]:
    if event is None:
        return {"step": None, "phase": None}
    return phases.select("step", "phase").row(event, named=True)


def _categories(live: pl.DataFrame) -> pl.DataFrame:
    size = pl.col("size")
    return (
        live.group_by("category")
        .agg(
            size.sum(),
            count=pl.len(),
            largest=size.max(),
            **{
                name: size.filter(pl.col("confidence") == name).sum()
                for name in CONFIDENCE
            },
        )
        .sort("size", "category", descending=[True, False])
    )


def _by(live: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Return the live memory by module or by place, largest first."""
    return (
        live.drop_nulls(key[0])
        .group_by(key)
        .agg(pl.sum("size"), count=pl.len(), category=_main_category())
        .sort(-pl.col("size"), *key)
    )


def _main_category() -> pl.Expr:
    """Return the category of the largest of a group."""
    largest = pl.struct("category", "size").sort_by("size", descending=True)
    return largest.first().struct.field("category")


def _largest(live: pl.DataFrame) -> pl.DataFrame:
    """Return the allocations by size, equal ones in one row."""
    equal = ["size", "category", "confidence", "stack", "phase", "free_phase"]
    return (
        live.with_columns(never_freed=pl.col("free").is_null())
        .group_by(*equal, "never_freed", maintain_order=True)
        .agg(
            pl.col(*PLACE, "chain", "op", "node").first(),
            count=pl.len(),
            from_before=pl.col("alloc").is_null().any(),
            steps=(pl.col("free_step") - pl.col("step")).max(),
            lifetime=(pl.col("free_ts") - pl.col("alloc_ts")).max(),
        )
        .sort("size", "count", descending=True, maintain_order=True)
    )
