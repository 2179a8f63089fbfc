"""Kernels and ops as tables that one sorts and searches."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from traceq.analysis.base.steady import steady_steps
from traceq.analysis.time.gpu_time import by_host_op, by_kernel, by_op
from traceq.common import units
from traceq.report.base.text import of_function, shapes, short_kernel
from traceq.report.page import charts
from traceq.report.page.section import Section

if TYPE_CHECKING:
    import polars as pl

    from traceq.model.trace import Trace
    from traceq.report.page.charts import Tip
    from traceq.report.page.section import Subject

_MOST = 150
_NAME = 110
_NUMBERS = (("time", True), ("share", True), ("calls", True), ("each call", True))


class Cell(NamedTuple):
    """A text, and the number by which it is sorted."""

    text: str
    value: float | None = None
    tip: Tip | None = None
    meter: float | None = None
    """Length of a small bar, in percent of the largest."""


class Sortable(NamedTuple):
    """A table, longest first."""

    key: str
    title: str
    heads: tuple[tuple[str, bool], ...]
    """Each head, and whether the column has numbers."""
    rows: list[list[Cell]]
    shown: str
    """Sentence on the number of rows, and of those shown."""


def kernels(subject: Subject) -> Section | None:
    """Return the tables; none without a trace."""
    trace = subject.recording.trace if subject.recording else None
    if trace is None:
        return None
    steady = steady_steps(trace)
    on_gpu = steady.kernels.height > 0
    tables = [_kernels(subject, steady.kernels, steady.count)] if on_gpu else []
    tables.append(_ops(subject, trace, steady.count, on_gpu=on_gpu))
    return Section(
        key=subject.key("kernels"),
        title="Kernels and ops" if on_gpu else "Ops",
        template="kernels.html",
        context={
            "tables": [table for table in tables if table.rows],
            "each": "a step" if trace.steps.height else "the whole trace",
        },
    )


def _kernels(subject: Subject, kernels: pl.DataFrame, steps: int) -> Sortable:
    by_name = by_kernel(kernels)
    total, most = int(by_name["time"].sum()), by_name["time"][0]
    rows = [
        [
            Cell(
                charts.brief(short_kernel(row["name"]), _NAME), tip=_whole(row["name"])
            ),
            *_numbers(row["time"], (total, most), row["kernels"], steps),
            Cell(row["kind"] or ""),
            Cell(row["dtype"] or ""),
            Cell(row["library"] or ""),
        ]
        for row in by_name.head(_MOST).iter_rows(named=True)
    ]
    heads = (
        ("Kernel", False),
        *_NUMBERS,
        *((column, False) for column in ("kind", "dtype", "library")),
    )
    return Sortable(
        subject.key("table-kernels"),
        "Kernels by GPU time",
        heads,
        rows,
        _count(len(rows), by_name.height, "kernels"),
    )


def _ops(subject: Subject, trace: Trace, steps: int, *, on_gpu: bool) -> Sortable:
    steady = steady_steps(trace)
    ops = by_op(trace, steady.kernels) if on_gpu else by_host_op(trace, steady.windows)
    total, most = int(ops["time"].sum()), ops["time"][0] if ops.height else 0
    rows = [
        [
            Cell(charts.brief(row["name"] or "(no op)")),
            *_numbers(row["time"], (total, most), row["calls"], steps),
            Cell(row["phase"] or ""),
            Cell(charts.brief(shapes(row["dims"]))),
            Cell(charts.brief(of_function(row["file"], row["line"], row["function"]))),
        ]
        for row in ops.head(_MOST).iter_rows(named=True)
    ]
    heads = (
        ("Op", False),
        *_NUMBERS,
        *((column, False) for column in ("phase", "shapes", "where")),
    )
    return Sortable(
        subject.key("table-ops"),
        f"Ops by {'GPU' if on_gpu else 'host'} time",
        heads,
        rows,
        _count(len(rows), ops.height, "ops, by shapes and place"),
    )


def _numbers(time: int, wholes: tuple[int, int], calls: int, steps: int) -> list[Cell]:
    total, most = wholes
    each = time / calls if calls else 0.0
    return [
        Cell(units.time(time / steps), time / steps),
        Cell(
            units.share(time, total),
            time / total if total else 0.0,
            meter=round(100 * time / most, 2) if most else 0.0,
        ),
        Cell(units.number(calls / steps, 6), calls / steps),
        Cell(units.time(each), each),
    ]


def _whole(name: str) -> Tip | None:
    """Return the whole name, where it is not shown."""
    short = short_kernel(name)
    return charts.tip(name) if short != name or len(short) > _NAME else None


def _count(count: int, every: int, what: str) -> str:
    if count == every:
        return f"{every:,} {what}"
    return f"the first {count:,} of {every:,} {what}"
