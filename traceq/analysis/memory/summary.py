"""All that is said of a memory snapshot at first sight, for one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.memory.categories import SURE, memory_allocations
from traceq.analysis.memory.curve import memory_curve, memory_peaks
from traceq.analysis.memory.fragmentation import blocks_at, free_pieces
from traceq.analysis.memory.growth import memory_growth
from traceq.analysis.memory.lifetimes import live_at
from traceq.analysis.memory.modules import modules
from traceq.analysis.memory.oom import failures
from traceq.analysis.memory.phases import event_phases
from traceq.analysis.memory.stacks import stack_sources
from traceq.analysis.memory.timeline import category_curves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.model.run import Run
    from traceq.model.snapshot import Snapshot, SnapshotFacts
    from traceq.trace import Trace

_PLACE = ["file", "line", "function"]
_DEFAULT_POOL = "0.0"


@dataclass(frozen=True)
class Fragmentation:
    """What was reserved at the peak and not of use, in bytes."""

    rounding: int
    """Inside of blocks: they are larger than what was asked for."""
    beside: int
    """Free, but in segments that tensors hold a part of."""
    releasable: int
    """Free in segments that nobody holds a part of: empty_cache gives them back."""
    largest: int
    """The largest free piece: no larger allocation fits without a new segment."""
    pieces: int
    pending: int
    """Given back by the program, but a stream may still use it."""
    private: int
    """Free in pools of their own, as of CUDA graphs, which others cannot use."""
    holders: pl.DataFrame
    """Who holds a part of the segments with free pieces: ``category``, place, ``held``,
    ``beside``; the most free beside it first."""


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
    """Live at the peak: ``category``, ``size``, ``count``, ``largest``, and ``sure``,
    ``likely`` and ``guess``: how much of it is so sure."""
    modules: pl.DataFrame | None
    """Live at the peak by ``module`` and ``category``; none without a trace."""
    places: pl.DataFrame
    """Live at the peak by the user's line: place, ``category``, ``size``, ``count``."""
    largest: pl.DataFrame
    """The largest single allocations at the peak; alike ones are one row with a
    ``count``."""
    steps: pl.DataFrame
    """For each ``step`` the ``highest`` and ``lowest`` of what was allocated."""
    growth: pl.DataFrame
    """What each step leaves behind, as ``memory_growth`` says."""
    failures: pl.DataFrame
    """Allocations that failed, as ``failures`` says."""
    fragmentation: Fragmentation
    settings: dict[str, str]
    phases: pl.DataFrame
    """Step and phase of each event, as ``event_phases`` says."""
    curve: pl.DataFrame
    curves: pl.DataFrame
    """What was live of each category, as ``category_curves`` says."""
    run: Run | None = None


def summarise_memory(
    snapshot: Snapshot,
    name: str,
    *,
    trace: Trace | None = None,
    run: Run | None = None,
) -> Iterator[MemorySummary]:
    """Yield a summary for each device that has memory.

    ``trace`` is the trace of the same run, which knows the modules.
    """
    allocations = memory_allocations(snapshot)
    if trace is not None:
        found = modules(allocations, trace)
        allocations = allocations.with_columns(module=found)
    sources = stack_sources(snapshot)
    phases = event_phases(snapshot, sources)
    curve = memory_curve(snapshot)
    failed = failures(snapshot, curve, sources)
    growth = memory_growth(allocations, curve, phases)
    peaks = memory_peaks(curve).filter(pl.col("most_reserved") > 0)
    for peak in peaks.iter_rows(named=True):
        here = pl.col("device") == peak["device"]
        own = allocations.filter(here)
        live = live_at(own, peak["event"])
        own_curve = curve.filter(here)
        yield MemorySummary(
            facts=snapshot.facts,
            device=peak["device"],
            name=f"{name}, device {peak['device']}" if peaks.height > 1 else name,
            peak=peak | _moment(phases, peak["event"]),
            categories=_categories(live),
            modules=_modules(live) if trace is not None else None,
            places=_places(live),
            largest=_largest(live),
            steps=_steps(own_curve, phases),
            growth=growth.filter(here),
            failures=failed.filter(here),
            fragmentation=_fragmentation(snapshot, own, peak),
            settings=dict(snapshot.settings.iter_rows()),
            phases=phases,
            curve=own_curve,
            curves=category_curves(own),
            run=run,
        )


def _moment(phases: pl.DataFrame, event: int | None) -> dict[str, Any]:
    if event is None:
        return {"step": None, "phase": None}
    return (
        phases.filter(pl.col("event") == event)
        .select("step", "phase")
        .row(0, named=True)
    )


def _categories(live: pl.DataFrame) -> pl.DataFrame:
    size = pl.col("size")
    return (
        live.group_by("category")
        .agg(
            size.sum(),
            count=pl.len(),
            largest=size.max(),
            **{name: size.filter(pl.col("sure") == name).sum() for name in SURE},
        )
        .sort("size", "category", descending=[True, False])
    )


def _modules(live: pl.DataFrame) -> pl.DataFrame:
    return (
        live.filter(pl.col("module").is_not_null())
        .group_by("module")
        .agg(pl.sum("size"), count=pl.len(), category=_main_category())
        .sort("size", "module", descending=[True, False])
    )


def _places(live: pl.DataFrame) -> pl.DataFrame:
    return (
        live.filter(pl.col("file").is_not_null())
        .group_by(_PLACE)
        .agg(pl.sum("size"), count=pl.len(), category=_main_category())
        .sort("size", *_PLACE, descending=[True, False, False, False])
    )


def _main_category() -> pl.Expr:
    """Return the category of the largest of a group."""
    largest = pl.struct("category", "size").sort_by("size", descending=True)
    return largest.first().struct.field("category")


def _largest(live: pl.DataFrame) -> pl.DataFrame:
    """Return the allocations by size, alike ones in one row."""
    alike = ["size", "category", "sure", "stack", "phase", "free_phase", "to_the_end"]
    kept = (pl.col("free_step") - pl.col("step")).max()
    return (
        live.with_columns(to_the_end=pl.col("free").is_null())
        .group_by(alike, maintain_order=True)
        .agg(
            pl.col(*_PLACE, "chain", "op", "node").first(),
            count=pl.len(),
            from_before=pl.col("alloc").is_null().any(),
            steps=kept,
            lived=(pl.col("free_ts") - pl.col("alloc_ts")).max(),
        )
        .sort("size", "count", descending=True, maintain_order=True)
    )


def _steps(curve: pl.DataFrame, phases: pl.DataFrame) -> pl.DataFrame:
    return (
        curve.join(phases.select("event", "step").drop_nulls(), on="event")
        .group_by("step")
        .agg(
            highest=pl.max("allocated"),
            lowest=pl.min("allocated"),
            end=pl.col("allocated").last(),
            events=pl.len(),
        )
        .sort("step")
    )


def _fragmentation(
    snapshot: Snapshot, own: pl.DataFrame, peak: dict[str, Any]
) -> Fragmentation:
    event = peak["event"]
    here = pl.col("device") == peak["device"]
    blocks = blocks_at(snapshot, own, event)
    pieces = free_pieces(snapshot, own, event).filter(here)
    private = (pl.col("pool").cast(pl.String) != _DEFAULT_POOL).fill_null(value=False)
    shared, size = pieces.filter(~private), pl.col("size")
    beside = shared.filter(pl.col("held") > 0)
    free = beside.group_by("segment").agg(beside=size.sum())
    return Fragmentation(
        rounding=_total(blocks, pl.col("block") - size),
        beside=_total(beside, size),
        releasable=_total(shared.filter(pl.col("held") == 0), size),
        largest=_total(shared, size.max().fill_null(0)),
        pieces=shared.height,
        pending=peak["active"] - peak["allocated"],
        private=_total(pieces.filter(private), size),
        holders=_holders(blocks, free),
    )


def _holders(blocks: pl.DataFrame, free: pl.DataFrame) -> pl.DataFrame:
    """Return who holds a part of segments with free pieces, the most free first.

    What is free in a segment counts for all that hold a part of it.
    """
    key = ["category", *_PLACE]
    held = blocks.join(free, on="segment")
    beside = (
        held.select(*key, "segment", "beside")
        .unique()
        .group_by(key)
        .agg(pl.sum("beside"))
    )
    return (
        held.group_by(key)
        .agg(held=pl.sum("block"), count=pl.len())
        .join(beside, on=key, nulls_equal=True)
        .sort("beside", "held", descending=True)
    )


def _total(rows: pl.DataFrame, what: pl.Expr) -> int:
    return int(rows.select(what.sum()).item())
