"""The tables of a summary: the GPU's time by kind, op and kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.time.modules import UNKNOWN
from traceq.analysis.time.phases import STEP
from traceq.common import units
from traceq.common.safe_text import printable
from traceq.model.schema import PHASES
from traceq.report.base.columns import (
    Column,
    cut_list,
    cut_middle,
    cut_module,
    cut_place,
)
from traceq.report.base.content import TextTable
from traceq.report.base.text import of_function, shapes, short_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from traceq.analysis.summary import Summary
    from traceq.analysis.time.phases import PhaseTime

_TWO = 2
_MOST_OPS = 8
_MOST_MODULES = 8
# Modules that are known for less of the GPU's time are not shown. Heuristic threshold.
_LEAST_KNOWN = 0.1
_MOST_KERNELS = 6
# Below this much GPU time a step, times are written in microseconds.
_TINY_NS = 100_000


def phases(summary: Summary) -> TextTable:
    """Return the table of phases: duration, variation and longest kernel."""
    unit, steps = _Unit.of(summary), summary.steady.count
    gpu, several = summary.facts.gpu, steps > 1
    warm = any(phase.warmup_ns is not None for phase in summary.phases)
    estimated = any(phase.estimated_ns is not None for phase in summary.phases)
    whole = summary.phases[-1].estimated_ns if summary.phases else None
    titles = [
        unit.title,
        "share",
        *(["std", "min", "max"] if several else []),
        *(["estimated", "share"] if estimated else []),
        *(["GPU busy"] if gpu else []),
        *(["warm-up"] if warm else []),
    ]

    def row(phase_time: PhaseTime) -> tuple[str, ...]:
        def written(ns: float) -> str:
            return unit.written(ns * steps)

        return (
            phase_time.phase
            if summary.steps.height or phase_time.phase != STEP
            else "all",
            written(phase_time.wall_ns),
            units.share(phase_time.wall_ns, summary.step_time),
            *(
                map(
                    written,
                    (phase_time.std_ns or 0, phase_time.min_ns, phase_time.max_ns),
                )
                if several
                else ()
            ),
            *(_without_profiler(phase_time, whole, written) if estimated else ()),
            *([units.share(phase_time.busy_ns, phase_time.wall_ns)] if gpu else []),
            *([written(phase_time.warmup_ns or 0)] if warm else []),
            *([_longest(summary, phase_time.phase)] if gpu else []),
        )

    return TextTable(
        (
            Column("Phase, as recorded"),
            *(Column(title, number=True) for title in titles),
            *([Column("longest kernel", weight=3, cut=cut_middle)] if gpu else []),
        ),
        # One phase is the step.
        tuple(map(row, summary.phases)) if len(summary.phases) > _TWO else (),
    )


def _without_profiler(
    phase_time: PhaseTime, whole: float | None, written: Callable[[float], str]
) -> tuple[str, str]:
    """Return a phase without the profiler, and its share of the step."""
    return written(phase_time.estimated_ns or 0), units.share(
        phase_time.estimated_ns or 0, whole or 0
    )


def _longest(summary: Summary, phase: str) -> str:
    """Return the phase's longest kernel, and how much of its GPU time that takes."""
    longest = summary.longest.filter(pl.col("phase").cast(pl.String) == phase)
    if not longest.height:
        return ""
    row = longest.row(0, named=True)
    return f"{units.share(row['time'], row['all'])} {short_kernel(row['name'])}"


def modules(summary: Summary) -> TextTable:
    """Modules with most GPU time, layers of one class together."""
    whole = float(summary.modules["ns"].sum()) if summary.modules.height else 0.0
    named = summary.modules.filter("inside", pl.col("module") != UNKNOWN)
    if float(named["ns"].sum()) < _LEAST_KNOWN * whole:
        named = named.clear()
    unit = _Unit.of(summary)
    shown = summary.modules.head(_MOST_MODULES) if named.height else named
    rest = summary.modules[shown.height :] if named.height else named
    rows = [
        (
            printable(row["module"]),
            unit.written(row["ns"] * unit.steps),
            units.share(row["ns"], whole),
            units.average(row["kernels"]),
        )
        for row in shown.iter_rows(named=True)
    ]
    if rest.height:
        ns = float(rest["ns"].sum())
        rows.append(
            (
                f"{rest.height} more",
                unit.written(ns * unit.steps),
                units.share(ns, whole),
                units.average(float(rest["kernels"].sum())),
            )
        )
    return TextTable(
        (
            Column("Modules by GPU time", weight=4, cut=cut_module),
            *(Column(title, number=True) for title in (unit.title, "share", "kernels")),
        ),
        tuple(rows),
    )


def kinds(summary: Summary) -> TextTable:
    """Kinds of kernels down, the step and its phases across."""
    times = {
        (kind, phase): time
        for kind, phase, time in summary.kinds.select(
            "kind", "phase", "time"
        ).iter_rows()
    }
    all_kinds = list(dict.fromkeys(kind for kind, _ in times))
    phases = [
        phase for phase in PHASES if any((kind, phase) in times for kind in all_kinds)
    ]
    if len(phases) == 1:
        phases = []
    unit = _Unit.of(summary)

    def row(chosen: Sequence[str]) -> tuple[str, ...]:
        cells = []
        for phase in (None, *phases):
            column = {
                key: time for key, time in times.items() if phase in (None, key[1])
            }
            time = sum(time for (kind, _), time in column.items() if kind in chosen)
            share = units.share(time, sum(column.values()))
            cells.append(f"{unit.written(time)} {share:>4}" if time else "-")
        return tuple(cells)

    by_time = sorted(
        all_kinds,
        key=lambda kind: -sum(time for key, time in times.items() if key[0] == kind),
    )
    return TextTable(
        (
            Column("GPU time"),
            *(Column(title, number=True) for title in (unit.title, *phases)),
        ),
        (*((kind, *row([kind])) for kind in by_time), ("all", *row(all_kinds))),
    )


def ops(summary: Summary) -> TextTable:
    """Ops with most time on the GPU, or on the host where there is no GPU."""
    where = "GPU" if summary.facts.gpu else "host"
    total = int(summary.ops["time"].sum())
    unit = _Unit.of(summary)
    return TextTable(
        (
            *_listing(f"Ops by {where} time", unit),
            Column("phase", spare=True),
            Column("shapes", weight=3, cut=cut_list),
            Column("where", weight=3, cut=cut_place),
        ),
        tuple(
            (
                printable(row["name"] or "(no op)"),
                *_numbers(row["time"], total, row["calls"], unit),
                row["phase"] or "",
                shapes(row["dims"]),
                of_function(row["file"], row["line"], row["function"]),
            )
            for row in summary.ops.head(_MOST_OPS).iter_rows(named=True)
        ),
    )


def kernels(summary: Summary) -> TextTable:
    """Kernels with most time."""
    unit = _Unit.of(summary)
    return TextTable(
        (
            *_listing("Kernels by time", unit),
            Column("kind", weight=3),
            Column("library", weight=2, spare=True),
        ),
        tuple(
            (
                short_kernel(row["name"]),
                *_numbers(row["time"], summary.gpu_time, row["kernels"], unit),
                printable(" ".join(filter(None, (row["kind"], row["dtype"])))),
                printable(row["library"] or ""),
            )
            for row in summary.kernels.head(_MOST_KERNELS).iter_rows(named=True)
        ),
    )


def non_gemm(summary: Summary) -> TextTable:
    """Kernels that are no matmuls by family, each with its longest."""
    rows = summary.non_gemm
    unit = _Unit.of(summary)
    return TextTable(
        (
            *_listing("Non-GEMM kernels", unit),
            Column("longest", weight=4, cut=cut_middle),
        ),
        tuple(
            (
                row["kind"],
                *_numbers(row["time"], summary.gpu_time, row["kernels"], unit),
                f"{units.share(row['longest_time'], row['time'])}"
                f" {short_kernel(row['longest'])}",
            )
            for row in rows.iter_rows(named=True)
        ),
    )


@dataclass(frozen=True)
class _Unit:
    """Unit of the times in the tables of a trace: per step, in ms or, if tiny, µs."""

    title: str
    nanoseconds: int
    steps: int

    @classmethod
    def of(cls, summary: Summary) -> _Unit:
        steps = summary.steady.count
        whole = summary.gpu_time if summary.facts.gpu else summary.ops["time"].sum()
        unit, size = ("µs", 1_000) if whole < steps * _TINY_NS else ("ms", 1_000_000)
        return cls(f"{unit}/step" if summary.steps.height else unit, size, steps)

    def written(self, time: float) -> str:
        return f"{time / self.steps / self.nanoseconds:,.2f}"


def _listing(title: str, unit: _Unit) -> tuple[Column, ...]:
    numbers = (Column(title, number=True) for title in (unit.title, "share", "calls"))
    return (Column(title, weight=4, cut=cut_middle), *numbers)


def _numbers(time: int, total: int, count: int, unit: _Unit) -> tuple[str, str, str]:
    return (
        unit.written(time),
        units.share(time, total),
        units.average(count / unit.steps),
    )
