"""History of a memory snapshot: its allocations, their categories and peaks.

Each part is imported when it is used: lint imports this class, and few recordings have
a snapshot.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl
from msgspec import Struct

from traceq.analysis.memory.stacks import stack_sources
from traceq.analysis.memory.trace_allocations import (
    TRACE_OPS,
    in_trace,
    made_by,
    modules,
    trace_ops,
)
from traceq.common.expressions import known
from traceq.model.snapshot_names import FLAGS

if TYPE_CHECKING:
    from traceq.model.snapshot import Snapshot
    from traceq.model.trace import Trace

_KEY = ["stack", "size"]


class History(Struct, frozen=True, dict=True):
    """The history of one snapshot; each part is computed once, on first use."""

    snapshot: Snapshot
    trace: Trace | None = None
    """The trace of the same run, where there is one: it knows ops and modules."""

    @cached_property
    def sources(self) -> pl.DataFrame:
        """Line and op of each stack; ``STACK_SOURCES`` has the columns."""
        return stack_sources(self.snapshot)

    @cached_property
    def driver_events(self) -> pl.DataFrame:
        """The few events that reserve memory from the driver, or release it."""
        from traceq.analysis.memory.curve import RELEASING, RESERVING

        driver = pl.col("action").is_in(RESERVING + RELEASING)
        return self.snapshot.events.filter(driver)

    @cached_property
    def phases(self) -> pl.DataFrame:
        """The step and the phase of each event; ``EVENT_PHASES`` has the columns."""
        from traceq.analysis.memory.phases import event_phases

        return event_phases(self.snapshot, self.sources)

    @cached_property
    def steps(self) -> int:
        """Number of steps."""
        return self.phases["step"].drop_nulls().n_unique()

    @cached_property
    def curve(self) -> pl.DataFrame:
        """Each device's totals after each event; ``CURVE`` has the columns."""
        from traceq.analysis.memory.curve import memory_curve

        return memory_curve(self.snapshot)

    @cached_property
    def steps_of_curve(self) -> pl.DataFrame:
        """Highest, lowest and last total of each step on a device."""
        after = self.curve.select("device", "event", "allocated").drop_nulls("event")
        # The phases are those of all events, in their order.
        step = self.phases["step"].gather(after["event"])
        return (
            after.with_columns(step)
            .drop_nulls("step")
            .group_by("device", "step")
            .agg(
                highest=pl.max("allocated"),
                lowest=pl.min("allocated"),
                end=pl.col("allocated").last(),
                events=pl.len(),
            )
            .sort("device", "step")
        )

    @cached_property
    def peaks(self) -> pl.DataFrame:
        """The moment of each device's peak; ``PEAKS`` has the columns."""
        from traceq.analysis.memory.curve import memory_peaks

        return memory_peaks(self.curve)

    @cached_property
    def lifetimes(self) -> pl.DataFrame:
        """Lifetime of each allocation; ``LIFETIMES`` has the columns."""
        from traceq.analysis.memory.lifetimes import memory_lifetimes

        return memory_lifetimes(self.snapshot, self.phases)

    @cached_property
    def allocations(self) -> pl.DataFrame:
        """Every allocation with all its facts; ``ALLOCATIONS``."""
        from traceq.analysis.memory.categories import ALLOCATIONS, categorise
        from traceq.analysis.memory.labels import labels

        labelled = labels(self.snapshot, self.lifetimes)
        categorised = categorise(self.lifetimes, self.sources, labelled)
        return ALLOCATIONS.shaped(
            categorised.join(self._modules, on=_KEY, how="left", maintain_order="left")
        )

    @cached_property
    def at_peak(self) -> pl.DataFrame:
        """The allocations that lived at each device's peak."""
        live = [
            self.live(device, event)
            for device, event in self.peaks.select("device", "event").iter_rows()
        ]
        return pl.concat([self.allocations.clear(), *live])

    def live(self, device: int, event: int | None) -> pl.DataFrame:
        """Return the allocations that lived on a device right after an event."""
        from traceq.analysis.memory.lifetimes import live_at

        on_device = self.allocations.filter(pl.col("device") == device)
        return live_at(on_device, event)

    def peak_bytes(self, device: int) -> int:
        """Return the peak of the allocated bytes on a device."""
        on_device = self.peaks.filter(pl.col("device") == device)
        return int(on_device["allocated"].sum())

    @cached_property
    def casts(self) -> pl.DataFrame:
        """The allocations that changed a dtype.

        Their C++ frames show it; of stacks without such frames the trace does.
        """
        from traceq.analysis.memory.weight_copies import casting_stacks

        made = self.allocations.filter(pl.col("alloc").is_not_null())
        by_stack = pl.col("stack").is_in(casting_stacks(self.snapshot).implode())
        casts = self._made_by.filter("cast", "fits")
        unnamed = self._places.filter(pl.col("op").is_null())
        in_trace = unnamed.join(casts, on="key", how="semi")
        return _marked(made, in_trace).filter(by_stack | pl.col("marked"))

    @cached_property
    def weight_copies(self) -> pl.DataFrame:
        """The 16-bit copies of 32-bit weights that lived at each device's peak."""
        from traceq.analysis.memory.weight_copies import weight_copies

        live = self.at_peak.select("device", "alloc").drop_nulls()
        casts = self.casts.join(live, on=["device", "alloc"], how="semi")
        return weight_copies(self.at_peak, casts)

    @cached_property
    def scores(self) -> pl.DataFrame:
        """The allocations that hold attention scores.

        Their C++ frames show it; where stacks have no such frames the trace does.
        """
        from traceq.analysis.memory.attention_scores import scores_in_trace

        is_scores = pl.col("category") == "attention scores"
        if self.trace is None or self.names_ops:
            return self.allocations.filter(is_scores)
        in_trace = scores_in_trace(self._places, self.trace)
        marked = _marked(self.allocations, in_trace)
        return marked.filter(is_scores | pl.col("marked"))

    @cached_property
    def names_ops(self) -> bool:
        """True if the stacks have C++ frames, which name operators."""
        return self.sources["op"].is_not_null().any()

    @cached_property
    def trace_ops(self) -> pl.DataFrame:
        """The operators of the trace by function; ``TRACE_OPS`` has the columns."""
        if self.trace is None:
            return pl.DataFrame(schema=TRACE_OPS.dtypes)
        return trace_ops(self.trace)

    @cached_property
    def _places(self) -> pl.DataFrame:
        """Distinct allocation sites, with the function of the trace around each."""
        lifetimes = self.lifetimes if self.trace else self.lifetimes.clear()
        places = (
            lifetimes.select(_KEY)
            .drop_nulls()
            .unique(maintain_order=True)
            .join(self.sources.drop(FLAGS), on="stack", maintain_order="left")
            .drop_nulls("file")
            .with_row_index("key")
        )
        return in_trace(places, self.trace_ops)

    @cached_property
    def _made_by(self) -> pl.DataFrame:
        """Ops of the trace that may have made the allocations of each site."""
        return made_by(self._places, self.trace_ops)

    @cached_property
    def _modules(self) -> pl.DataFrame:
        """Module of each allocation site, where the trace has it."""
        places = self._places.select("key", *_KEY).unique("key")
        return places.join(modules(self._made_by), on="key").select(*_KEY, "module")


def _marked(allocations: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
    """Return allocations with whether they are at one of the places, as ``marked``."""
    keys = places.select(_KEY).unique().with_columns(marked=pl.lit(value=True))
    joined = allocations.join(keys, on=_KEY, how="left", maintain_order="left")
    return joined.with_columns(known(pl.col("marked")))
