"""Loading of batches in a recording without GPU work."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from traceq.analysis.base import callers
from traceq.linter import Evidence, counted

from ._in_process import ROW_ADVICE, Explanation
from ._rows import RowByRow
from ._stalls import inside_line

if TYPE_CHECKING:
    import polars as pl

    from traceq.linter import View

LONG_WITHOUT_GPU_NS = 1_000_000
"""Loading that is reported whatever its share: without a GPU the step takes longer than
with one, and less of it is loading. Heuristic threshold."""
_WAITS = "a GPU that is done sooner would wait"
_WORKERS = (
    "give the DataLoader num_workers, pin_memory=True and persistent_workers=True, so"
    " that batches are prepared while a GPU computes; and do less per sample"
)


def loading_without_gpu(view: View, regions: pl.DataFrame, example: str) -> Explanation:
    """Return how the training process loads, and what to do before a GPU waits."""
    loading = int((regions["end"] - regions["start"]).sum()) / view.steps
    inside = callers.called_inside(view.trace.frames, regions).head(1)
    why = _explanation(view, regions, example)
    evidence = (
        Evidence("loading", value=loading, unit="ns", note="a step"),
        *(inside_line(view, call) for call in inside.iter_rows(named=True)),
    )
    return replace(why, evidence=evidence + why.evidence)


def _explanation(view: View, regions: pl.DataFrame, example: str) -> Explanation:
    if by_rows := RowByRow.of(view, regions):
        return _rows(by_rows, example)
    message = "the training process itself loads the next batch (num_workers=0)"
    return Explanation(f"{message}: {_WAITS}", _WORKERS)


def _rows(row_by_row: RowByRow, example: str) -> Explanation:
    """Return that rows are picked one by one, in the training process."""
    rows = counted(round(row_by_row.rows), "row")
    parts = (("picking", row_by_row.picking_ns), ("stacking", row_by_row.stacking_ns))
    return Explanation(
        f"the DataLoader picks {rows} a step out of a TensorDataset one by one, and"
        f" stacks them, in the training process: {_WAITS}",
        ROW_ADVICE,
        evidence=tuple(
            Evidence(label, value=ns, unit="ns", note="a step, as recorded")
            for label, ns in parts
        ),
        example=example.replace("256", str(row_by_row.batch)),
    )
