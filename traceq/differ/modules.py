"""Effect of torch.compile on each module, between an eager and a compiled side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from traceq.analysis.time.modules import UNKNOWN, compiles, module_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.base.steady import SteadySteps
    from traceq.differ.calibration import Scale
    from traceq.model.run import CompiledPlace
    from traceq.model.trace import Trace

Became = Literal["fused", "faster", "same", "slower", "fell back", "uncompiled", ""]
"""In a word, what compiling did, whichever side is compiled. ``fell back``: it runs
mostly eager ops, while others of the model are compiled. ``uncompiled``: the same for
what is outside of modules. Empty where it is not known what the work is for."""

# With a known module for less of the compiled work there is no table. Heuristic.
_MOST_KNOWN = 0.5
_MOSTLY = 0.5
# A module whose time changes by at most this fraction, or this fraction of the GPU's
# time of a step, is the same. Heuristic thresholds: runs of one program differ by less.
_SAME = 0.05
_SAME_OF_STEP = 0.002


@dataclass(frozen=True)
class Work:
    """GPU work of a module in a step of one side."""

    ns: float = 0.0
    """Time on the GPU; each instant counts once."""
    kernels: float = 0.0
    """Each counts once: for the module that has most of it."""
    compiled: float = 0.0
    """The share of the time that is compiled code's."""


@dataclass(frozen=True)
class ModuleChange:
    """One module, layers of one class together, before and after."""

    module: str
    """Its path without numbers, a function where there is no module, or what it is."""
    before: Work
    after: Work
    became: Became


@dataclass(frozen=True)
class ModuleChanges:
    """All of them, most time first; they add up to the GPU's time of a step."""

    rows: tuple[ModuleChange, ...]
    compiled_side: Literal["before", "after"]
    breaks: tuple[CompiledPlace, ...] = ()
    """Graph breaks on that side, which are why modules fall back."""

    @property
    def total(self) -> ModuleChange:
        """The sum of all."""
        return self.sum_of("together", self.rows)

    @staticmethod
    def sum_of(name: str, rows: Sequence[ModuleChange]) -> ModuleChange:
        """Return several as one."""
        before, after = (
            Work(sum(work.ns for work in works), sum(work.kernels for work in works))
            for works in ([row.before for row in rows], [row.after for row in rows])
        )
        return ModuleChange(name, before, after, "")


def module_changes(
    traces: tuple[Trace, Trace],
    steady: tuple[SteadySteps, SteadySteps],
    scales: tuple[Scale, Scale],
) -> ModuleChanges | None:
    """Return the effect of compiling by module; None unless one side alone compiles.

    None as well where the modules of most of the compiled work are not known.
    """
    compiling = [
        compiles(trace, steps) for trace, steps in zip(traces, steady, strict=True)
    ]
    if compiling[0] == compiling[1]:
        return None
    after = compiling[1]
    sides = [
        _scaled(module_parts(trace, steps), scale.gpu)
        for trace, steps, scale in zip(traces, steady, scales, strict=True)
    ]
    inside = sides[after].filter("compiled")
    placed = float(inside.filter(pl.col("module") != UNKNOWN)["ns"].sum())
    if placed < _MOST_KNOWN * float(inside["ns"].sum()):
        return None
    both = _by_module(sides[0]).join(
        _by_module(sides[1]), on=["module", "inside"], how="full", coalesce=True
    )
    step_ns = max(float(side["ns"].sum()) for side in sides)
    rows = [_change(row, step_ns, after=after) for row in both.iter_rows(named=True)]
    rows.sort(
        key=lambda module_change: (
            -max(module_change.before.ns, module_change.after.ns),
            module_change.module,
        )
    )
    rank = traces[after].rank
    breaks = rank.compiled.graph_breaks if rank and rank.compiled else ()
    return ModuleChanges(tuple(rows), "after" if after else "before", breaks)


def _scaled(parts: pl.DataFrame, scale: float) -> pl.DataFrame:
    return parts.with_columns(pl.col("ns") * scale)


def _by_module(parts: pl.DataFrame) -> pl.DataFrame:
    compiled_ns = pl.col("ns").filter("compiled").sum()
    return parts.group_by("module", "inside").agg(
        pl.col("ns").sum(), pl.col("kernels").sum(), compiled=compiled_ns
    )


def _change(row: dict[str, Any], step_ns: float, *, after: bool) -> ModuleChange:
    works = [_work(row, suffix) for suffix in ("", "_right")]
    eager, compiled = works if after else reversed(works)
    became: Became = ""
    if row["module"] != UNKNOWN:
        became = _became(eager, compiled, step_ns, inside=row["inside"])
    return ModuleChange(row["module"], works[0], works[1], became)


def _work(row: dict[str, Any], suffix: str) -> Work:
    ns, kernels, compiled = (
        row[f"{name}{suffix}"] or 0.0 for name in ("ns", "kernels", "compiled")
    )
    return Work(ns, kernels, compiled / ns if ns else 0.0)


def _became(eager: Work, compiled: Work, step_ns: float, *, inside: bool) -> Became:
    """Return in a word what compiling did."""
    if compiled.ns and compiled.compiled < _MOSTLY:
        return "fell back" if inside else "uncompiled"
    change = compiled.ns - eager.ns
    if abs(change) <= max(_SAME * eager.ns, _SAME_OF_STEP * step_ns):
        return "same"
    if change > 0:
        return "slower"
    return "fused" if compiled.kernels < eager.kernels else "faster"
