"""Effect of torch.compile on each module, as a table for every format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from traceq.common.safe_text import printable
from traceq.common.units import time
from traceq.common.words import counted
from traceq.report.base.columns import Column, cut_module, fitted
from traceq.report.base.text import place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.differ.modules import ModuleChange, ModuleChanges, Work

TITLE = "What torch.compile did, by module, layers of one class together:"
TITLES = ("module", "GPU before", "after", "kernels", "after", "compiling")
_MOST_ROWS = 20
_MOST_BREAKS = 3


def rows(changes: ModuleChanges) -> list[tuple[str, ...]]:
    """Return the table's rows; what takes least is one row, then comes the sum."""
    largest = changes.rows[:_MOST_ROWS]
    cells = [_row(module_change) for module_change in largest]
    rest = changes.rows[_MOST_ROWS:]
    if rest:
        cells.append(_row(changes.sum_of(counted(len(rest), "other module"), rest)))
    return [*cells, _row(changes.total)]


def notes(changes: ModuleChanges) -> Iterator[str]:
    """Yield the reasons why modules fall back, as far as they are known."""
    if all(row.became != "fell back" for row in changes.rows):
        return
    for graph_break in changes.breaks[:_MOST_BREAKS]:
        where = place(graph_break.file, graph_break.line, graph_break.function)
        yield f"graph break at {where}: {printable(graph_break.why)}"


def text(changes: ModuleChanges, width: int) -> list[str]:
    """Return the table for a terminal, titles first."""
    columns = [
        Column(title, number=0 < at < len(TITLES) - 1, cut=cut_module)
        for at, title in enumerate(TITLES)
    ]
    lines, _ = fitted(columns, rows(changes), width)
    return lines


def data(changes: ModuleChanges) -> dict[str, Any]:
    """Return the same for programs, all rows of it."""
    return {
        "compiled": changes.compiled_side,
        "rows": [
            {
                "module": row.module,
                "before": _work(row.before),
                "after": _work(row.after),
                "compiling": row.became or None,
            }
            for row in changes.rows
        ],
        "graph_breaks": [to_builtins(graph_break) for graph_break in changes.breaks],
    }


def _work(work: Work) -> dict[str, Any]:
    return {
        "gpu_ns": round(work.ns),
        "kernels": work.kernels,
        "compiled_share": work.compiled,
    }


def _row(module_change: ModuleChange) -> tuple[str, ...]:
    return (
        printable(module_change.module),
        time(module_change.before.ns),
        time(module_change.after.ns),
        f"{module_change.before.kernels:,.0f}",
        f"{module_change.after.kernels:,.0f}",
        module_change.became,
    )
