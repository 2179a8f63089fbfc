"""The numbers of a step that budgets limit."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.memory.trace_peak import peak_memory
from traceq.analysis.patterns.compilation import captures, compilations
from traceq.analysis.time.launch_overhead import launches_per_step
from traceq.linter.snapshot_view import highest, snapshot_views
from traceq.linter.view import View
from traceq.model.names import BEGIN_CAPTURE
from traceq.records import dataclass
from traceq.units import NS_PER_MS
from traceq.words import layer_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.recording import Recording

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
class Layer:
    """What one layer, all its instances together, makes the GPU do in a step."""

    kernels: float
    backends: tuple[str, ...]
    """Where its kernels come from, as cublas, by name."""


@dataclass(frozen=True)
class Numbers:
    """The numbers of one recording; per step but for graph breaks and the peak."""

    values: Mapping[str, float]
    """By the names of EXACT, NOISY and OF_JOBS; what was not recorded is not here."""
    layers: Mapping[str, Layer] = field(default_factory=dict)
    """By path, as LM/Block/Linear; empty where stacks were not recorded."""
    backends: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Where kernels of a kind come from, as flash-attention; by ``KINDS``."""


def numbers(recording: Recording, graph_breaks: int | None = None) -> Numbers:
    """Return the numbers of a recording: of its steady steps, on average.

    A run knows its graph breaks; of a fixture they are given.
    """
    fullest = highest(snapshot_views(recording))
    if recording.trace is None:
        return Numbers({"peak-bytes": fullest.allocated} if fullest else {})
    view = View(recording.trace, recording.step_ns)
    steps = view.steps
    values = {
        "launches": launches_per_step(view.trace),
        "syncs": view.runtime.filter(pl.col("call") == "sync").height / steps,
        "copies": view.copies.height / steps,
        "captures": _captures(view) / steps,
        "recompiles": compilations(view.trace, view.steady).height / steps,
    }
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
    return Numbers(rounded, _layers(view), _backends(view))


def _backends(view: View) -> dict[str, tuple[str, ...]]:
    by_kind = (
        view.kernels.filter(pl.col("kind").is_in(KINDS))
        .group_by(kind=pl.col("kind").cast(pl.String))
        .agg(names=pl.col("library").cast(pl.String).drop_nulls().unique().sort())
        .sort("kind")
    )
    return {kind: tuple(names) for kind, names in by_kind.iter_rows()}


def _captures(view: View) -> int:
    """Count the CUDA graphs that were set up or captured, by torch or by hand."""
    found = captures(view.trace, view.steady)
    begun = pl.col("name").cast(pl.String).str.contains(BEGIN_CAPTURE)
    by_hand = view.runtime.filter(begun, pl.col("op").is_null()).height
    made = pl.max_horizontal(pl.col("set_up"), pl.col("captured")).sum()
    return int(found.select(made).item()) + by_hand


def _layers(view: View) -> dict[str, Layer]:
    by_layer = (
        view.kernels.filter(pl.col("module").is_not_null())
        .group_by(layer=layer_names(pl.col("module")))
        .agg(
            kernels=pl.len(),
            backends=pl.col("library").cast(pl.String).drop_nulls().unique().sort(),
        )
        .sort("layer")
    )
    return {
        layer: Layer(tidy(kernels / view.steps), tuple(backends))
        for layer, kernels, backends in by_layer.iter_rows()
    }


def tidy(value: float) -> float:
    """Return a number as people would write it: whole, or with three digits."""
    rounded = round(value, 3)
    return int(rounded) if rounded == int(rounded) else rounded
