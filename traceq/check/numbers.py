"""The numbers of a step that budgets limit."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.memory.trace_peak import peak_memory, peaks_by_step
from traceq.analysis.patterns.compilation import captures, compilations
from traceq.analysis.time.launch_overhead import launches_per_step
from traceq.check.spread import Spread, spread_of, tidy
from traceq.common.units import NS_PER_MS
from traceq.common.words import layer_names
from traceq.linter.snapshot_view import highest, snapshot_views
from traceq.linter.view import View
from traceq.model.names import BEGIN_CAPTURE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from traceq.model.recording import Recording

EXACT = (
    "launches",
    "syncs",
    "copies",
    "captures",
    "recompiles",
    "graph-breaks",
    "peak-bytes",
)
"""Numbers that are the same whenever the same program runs."""
NOISY = ("step-ms", "gpu-ms")
"""Numbers that differ a little from run to run."""
OF_JOBS = ("slowdown",)
"""Numbers of jobs of many ranks, beside step-ms; they differ from run to run, too."""


KINDS = ("attention", "gemm", "conv")
"""Kinds of kernels for which several libraries are at hand."""


@dataclass(frozen=True)
class Backends:
    """Libraries that kernels come from, as cublas, by name."""

    always: tuple[str, ...] = ()
    """In every step that has such kernels."""
    sometimes: tuple[str, ...] = ()
    """In some of these steps only."""

    @property
    def all(self) -> frozenset[str]:
        """The names of both."""
        return frozenset((*self.always, *self.sometimes))

    def joined(self, other: Backends | None) -> Backends:
        """Return the backends of two recordings of the same program."""
        if other is None:
            return self
        in_both = set(self.always) & set(other.always)
        rest = (self.all | other.all) - in_both
        return Backends(tuple(sorted(in_both)), tuple(sorted(rest)))


@dataclass(frozen=True)
class Layer:
    """GPU work of one layer in a step, all its instances together."""

    kernels: float
    backends: Backends
    spread: Spread | None = None
    """Of its kernels; None where all steps have the same number of them."""


@dataclass(frozen=True)
class Numbers:
    """The numbers of one recording; per step but for graph breaks and the peak."""

    values: Mapping[str, float]
    """By the names of EXACT, NOISY and OF_JOBS; what was not recorded is not here."""
    layers: Mapping[str, Layer] = field(default_factory=dict)
    """By path, as LM/Block/Linear; empty where stacks were not recorded."""
    backends: Mapping[str, Backends] = field(default_factory=dict)
    """Libraries that kernels of a kind come from, as flash-attention; by ``KINDS``."""
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    """Of the values that are not the same in all steps."""


def numbers(recording: Recording, graph_breaks: int | None = None) -> Numbers:
    """Return the numbers of a recording: averages of its representative steps.

    Their spread is that of all steps after warm-up, since another recording of the
    program may average over others. A run knows its graph breaks; of a fixture they
    are given.
    """
    fullest = highest(snapshot_views(recording))
    if recording.trace is None:
        return Numbers({"peak-bytes": fullest.allocated} if fullest else {})
    view = View(recording.trace, recording.step_ns)
    every_step = _view_of_every_step(view)
    steps = view.steps
    values = {name: float(counts.sum()) / steps for name, counts in _counts(view)}
    if (rank := view.trace.rank) and rank.compiled:
        graph_breaks = len(rank.compiled.graph_breaks)
    if graph_breaks is not None:
        values["graph-breaks"] = graph_breaks
    if peak := fullest or peak_memory(view.trace):
        values["peak-bytes"] = peak.allocated
    values["step-ms"] = view.bound.step_ns / NS_PER_MS
    if view.trace.facts.gpu:
        values["gpu-ms"] = view.steady.gpu_busy / steps / NS_PER_MS
    rounded = {name: tidy(value) for name, value in values.items()}
    return Numbers(
        rounded, _layers(view, every_step), _backends(every_step), _spreads(every_step)
    )


def _view_of_every_step(view: View) -> View:
    """Return the view whose averages include every step after warm-up."""
    trace = view.trace
    if (trace.steps["averaged"] | trace.steps["warmup"]).all():
        return view
    steps = trace.steps.with_columns(averaged=~pl.col("warmup"))
    return View(replace(trace, steps=steps), view.step_ns)


def _counts(view: View) -> Iterator[tuple[str, pl.Series]]:
    """Yield the name of each exact number, and its value in each averaged step."""
    trace, steady = view.trace, view.steady
    steps = trace.steps.filter("averaged")
    yield (
        "launches",
        steps["launches"]
        if steps.height
        else pl.Series([launches_per_step(trace)], dtype=pl.Float64),
    )
    yield "syncs", _by_step(view, view.runtime.filter(pl.col("call") == "sync"))
    yield "copies", _by_step(view, view.copies)
    yield "captures", _captures(view)
    yield "recompiles", _by_step(view, compilations(trace, steady))


def _by_step(view: View, table: pl.DataFrame, amount: str = "") -> pl.Series:
    """Return the rows of a table in each step, or the sum of a column."""
    steps = view.steady.windows.select("step")
    sums = (pl.col(amount).sum() if amount else pl.len()).alias("found")
    if not view.trace.steps.height:
        return table.select(sums)["found"]
    rows = table.select("step", *([amount] if amount else [])).cast(
        {"step": steps.schema["step"]}
    )
    counts = rows.group_by("step").agg(sums)
    return steps.join(counts, on="step", how="left")["found"].fill_null(0)


def _spreads(view: View) -> dict[str, Spread]:
    """Return the spread of the numbers that are not the same in all steps."""
    trace = view.trace
    steps = trace.steps.filter("averaged")
    spreads = {name: spread_of(counts) for name, counts in _counts(view)}
    spreads["peak-bytes"] = spread_of(peaks_by_step(trace, view.steady.windows["step"]))
    spreads["step-ms"] = _spread_of_time(view, steps)
    if trace.facts.gpu:
        spreads["gpu-ms"] = spread_of(steps["gpu_busy"], NS_PER_MS)
    return {name: spread for name, spread in spreads.items() if spread}


def _spread_of_time(view: View, steps: pl.DataFrame) -> Spread | None:
    """Return the tolerance of the step time, measured or estimated."""
    step = view.bound.step_ns
    timed = view.trace.rank.step_time if view.trace.rank else None
    if view.step_ns is not None:
        # It is a mean of many steps already, of which one is not another's limit.
        if timed is None or not timed.noise_ns:
            return None
        ends = max(0.0, step - timed.noise_ns), step + timed.noise_ns
        return Spread(timed.steps, *(tidy(end / NS_PER_MS) for end in ends))
    # The profiler slows all steps down: how they differ is known, not how long each is.
    mean = steps["time"].mean()
    if not isinstance(mean, float) or not mean:
        return None
    return spread_of(steps["time"], NS_PER_MS * mean / step) if step else None


def _backends(view: View) -> dict[str, Backends]:
    chosen = view.kernels.filter(pl.col("kind").is_in(KINDS))
    return dict(_libraries(chosen.with_columns(group=pl.col("kind").cast(pl.String))))


def _libraries(kernels: pl.DataFrame) -> list[tuple[str, Backends]]:
    """Return the libraries of each ``group`` of kernels, by name."""
    by_step = kernels.select("group", "step", pl.col("library").cast(pl.String))
    steps = pl.col("step").n_unique()
    libraries = (
        by_step.with_columns(of=steps.over("group"))
        .filter(pl.col("library").is_not_null())
        .group_by("group", "library")
        .agg(everywhere=steps == pl.col("of").first())
        .group_by("group")
        .agg(
            always=pl.col("library").filter("everywhere").sort(),
            sometimes=pl.col("library").filter(~pl.col("everywhere")).sort(),
        )
    )
    groups = by_step.select(pl.col("group").unique()).sort("group")
    rows = groups.join(
        libraries, on="group", how="left", maintain_order="left"
    ).iter_rows()
    return [(name, Backends(tuple(x or ()), tuple(y or ()))) for name, x, y in rows]


def _captures(view: View) -> pl.Series:
    """Count the CUDA graphs that were set up or captured, by torch or by hand."""
    mapped = captures(view.trace, view.steady)
    begun = pl.col("name").cast(pl.String).str.contains(BEGIN_CAPTURE)
    by_hand = view.runtime.filter(begun, pl.col("op").is_null())
    made = pl.max_horizontal(pl.col("set_up"), pl.col("captured"))
    counted = _by_step(view, mapped.with_columns(made=made), "made")
    return counted + _by_step(view, by_hand)


def _layers(view: View, every_step: View) -> dict[str, Layer]:
    """Return the layers of every step, with their kernels per averaged step."""
    kernels = _kernels_by_layer(every_step)
    by_step = kernels.group_by("group", "step").agg(kernels=pl.len())
    steps, of = pl.col("kernels").len(), every_step.steps
    limits = by_step.group_by("group").agg(
        # A step without the layer is no row.
        min=pl.when(steps < of).then(0).otherwise(pl.col("kernels").min()),
        max=pl.col("kernels").max(),
    )
    averaged = _kernels_by_layer(view).group_by("group").agg(total=pl.len())
    limits = limits.join(averaged, on="group", how="left")
    by_layer = {name: rest for name, *rest in limits.iter_rows()}
    layers = {}
    for name, backends in _libraries(kernels):
        least, most, total = by_layer[name]
        spread = Spread(of, least, most) if least != most else None
        layers[name] = Layer(tidy((total or 0) / view.steps), backends, spread)
    return layers


def _kernels_by_layer(view: View) -> pl.DataFrame:
    """Return the kernels within modules, with the name of their layer as ``group``."""
    return view.kernels.filter(pl.col("module").is_not_null()).with_columns(
        group=layer_names(pl.col("module"))
    )
