"""The tables of a summary: the GPU's time by kind, op and kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceq import units
from traceq.model.schema import PHASES
from traceq.report.base.columns import Column, cut_list, cut_middle, cut_place
from traceq.report.base.content import TextTable
from traceq.report.base.text import of_function, printable, shapes, short_kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.summary import Summary

_MOST_OPS = 8
_MOST_KERNELS = 6
# Below this much GPU time a step, times are written in microseconds.
_TINY_NS = 100_000


def kinds(summary: Summary) -> TextTable:
    """Kinds of kernels down, the step and its phases across."""
    times = {
        (kind, phase): time
        for kind, phase, time in summary.kinds.select(
            "kind", "phase", "time"
        ).iter_rows()
    }
    known = list(dict.fromkeys(kind for kind, _ in times))
    phases = [
        phase for phase in PHASES if any((kind, phase) in times for kind in known)
    ]
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
        known,
        key=lambda kind: -sum(time for key, time in times.items() if key[0] == kind),
    )
    return TextTable(
        (
            Column("GPU time"),
            *(Column(title, number=True) for title in (unit.title, *phases)),
        ),
        (*((kind, *row([kind])) for kind in by_time), ("all", *row(known))),
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


@dataclass(frozen=True)
class _Unit:
    """How the tables of one trace write times: per step, in ms or, if tiny, in µs."""

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
