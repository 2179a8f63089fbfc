"""What torch.compile did to each module: eager code on one side, compiled on the other.

A kernel's time belongs to the module that its op is in. One that inductor fused of ops
of several modules is split among them by the bytes that each op would move by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from traceq.analysis.patterns.compilation import without_capture
from traceq.differ.attribution import busy_time
from traceq.differ.structure import OPTIMIZER, in_part
from traceq.expressions import known, text
from traceq.graph.nesting import nearest
from traceq.words import layer_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.base.steady import SteadySteps
    from traceq.differ.calibration import Scale
    from traceq.model.run import CompiledPlace
    from traceq.trace import Trace

Became = Literal["fused", "faster", "same", "slower", "fell back", "uncompiled", ""]
"""In a word, what compiling did, whichever side is compiled. ``fell back``: it runs
mostly eager ops, while others of the model are compiled. ``uncompiled``: the same for
what is outside of modules. Empty where it is not known what the work is for."""

# What compiled code runs in: the forward, and the nodes of autograd for its backward.
_COMPILED = (
    r"^(Torch-Compiled Region|CompiledFunction|## Call CompiledFxGraph)"
    r"|evaluate_function: CompiledFunctionBackward$"
)
# Less compiled work with a known module than this share has no table. By judgement.
_MOST_KNOWN = 0.5
_MOSTLY = 0.5
# A module that takes at most this share more or less, or this share of the GPU's time
# of a step, is the same. Chosen by judgement: runs of one program differ by less.
_SAME = 0.05
_SAME_OF_STEP = 0.002
_UNKNOWN = "not known"


@dataclass(frozen=True)
class Work:
    """What the GPU does for a module in a step of one side."""

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
            Work(sum(one.ns for one in works), sum(one.kernels for one in works))
            for works in ([row.before for row in rows], [row.after for row in rows])
        )
        return ModuleChange(name, before, after, "")


def module_changes(
    traces: tuple[Trace, Trace],
    steady: tuple[SteadySteps, SteadySteps],
    scales: tuple[Scale, Scale],
) -> ModuleChanges | None:
    """Return what compiling did to each module; None unless one side alone compiles.

    None as well where the modules of most of the compiled work are not known.
    """
    sides = [
        _kernels(trace, steps, scale.gpu)
        for trace, steps, scale in zip(traces, steady, scales, strict=True)
    ]
    compiles = [bool(side["compiled"].any()) for side in sides]
    if compiles[0] == compiles[1]:
        return None
    after = compiles[1]
    inside = sides[after].filter("compiled")
    placed = float(inside.filter(pl.col("module") != _UNKNOWN)["ns"].sum())
    if placed < _MOST_KNOWN * float(inside["ns"].sum()):
        return None
    both = _by_module(sides[0]).join(
        _by_module(sides[1]), on=["module", "inside"], how="full", coalesce=True
    )
    step_ns = max(float(side["ns"].sum()) for side in sides)
    rows = [_change(row, step_ns, after=after) for row in both.iter_rows(named=True)]
    rows.sort(key=lambda one: (-max(one.before.ns, one.after.ns), one.module))
    rank = traces[after].rank
    breaks = rank.compiled.graph_breaks if rank and rank.compiled else ()
    return ModuleChanges(tuple(rows), "after" if after else "before", breaks)


def _kernels(trace: Trace, steady: SteadySteps, scale: float) -> pl.DataFrame:
    """Return the parts of the kernels of a step: module, time, whether compiled."""
    times = busy_time(trace, steady).filter(pl.col("gpu_ns") > 0)
    kernels = trace.kernels.select(
        "id",
        "op",
        module=pl.when(without_capture(trace))
        .then(pl.lit(_UNKNOWN))
        .otherwise(_named(pl.col("module"), pl.col("phase"))),
        inside=pl.col("module").is_not_null() & (text("phase") != "optimizer"),
        compiled=_compiled(trace),
        counted=in_part(trace.kernels, trace, steady),
    )
    found = kernels.join(times, left_on="id", right_on="kernel", how="left").filter(
        pl.col("counted") | (pl.col("gpu_ns") > 0)
    )
    parts = trace.fused.drop_nulls("op").select(
        "op",
        "share",
        part=layer_names(pl.col("module")),
    )
    split = found.join(parts, on="op", how="left", maintain_order="left").with_columns(
        share=pl.col("share").fill_null(1.0)
    )
    whole = pl.col("share").sum().over("id")
    share = pl.when(whole > 0).then(pl.col("share") / whole).otherwise(1 / pl.len())
    most = pl.col("share") == pl.col("share").max().over("id")
    return split.select(
        module=pl.coalesce("part", "module"),
        inside=pl.col("inside") | pl.col("part").is_not_null(),
        compiled="compiled",
        ns=pl.col("gpu_ns").fill_null(0) * share * (scale / steady.count),
        kernels=(pl.col("counted") & most & pl.struct("id", most).is_first_distinct())
        / steady.count,
    )


def _named(module: pl.Expr, phase: pl.Expr) -> pl.Expr:
    """Return the module, or else what stands for it: the optimizer, a function."""
    place = pl.concat_str(
        pl.lit("in "), text("function"), pl.lit(" ("), text("file"), pl.lit(")")
    )
    return (
        pl.when(phase.cast(pl.String) == "optimizer")
        .then(pl.lit(OPTIMIZER))
        .otherwise(pl.coalesce(layer_names(module), place, pl.lit(_UNKNOWN)))
    )


def _compiled(trace: Trace) -> pl.Series:
    """Return for each kernel whether compiled code launched it, or a graph of that."""
    ops = trace.ops
    marked = ops.select(known(text("name").str.contains(_COMPILED))).to_series()
    inside = nearest(ops["parent"], marked).is_not_null()
    launched_by = trace.runtime["op"].gather(trace.kernels["launch"])
    return known(inside.gather(launched_by)) | known(inside.gather(trace.kernels["op"]))


def _by_module(parts: pl.DataFrame) -> pl.DataFrame:
    compiled_ns = pl.col("ns").filter("compiled").sum()
    return parts.group_by("module", "inside").agg(
        pl.col("ns").sum(), pl.col("kernels").sum(), compiled=compiled_ns
    )


def _change(row: dict[str, Any], step_ns: float, *, after: bool) -> ModuleChange:
    works = [_work(row, suffix) for suffix in ("", "_right")]
    eager, compiled = works if after else reversed(works)
    became: Became = ""
    if row["module"] != _UNKNOWN:
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
