"""Rows of a TensorDataset that a DataLoader picks one by one, and stacks again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.base.sync_calls import TO_GPU, copy_directions
from traceq.linter import dataclass, has_like, named_like, text
from traceq.model.owners import third_party

from ._workers import called_in, loading_ns

if TYPE_CHECKING:
    from traceq.linter import View

# A TensorDataset picks a row by a generator over its tensors; no other dataset of
# torch's does so, but for a StackDataset, which calls others.
_PICKS = r"^torch/utils/data/dataset\.py\(\d+\): __getitem__$"
_OF_TENSORS = r"^torch/utils/data/dataset\.py\(\d+\): <genexpr>$"
_STACKS = r"^torch/utils/data/_utils/collate\.py\(\d+\): default_collate$"
# A smaller fraction of the loading time is not worth another loader. Heuristic.
_LEAST = 0.3


@dataclass(frozen=True)
class RowByRow:
    """Loads of this kind in a step; the last two are of a batch."""

    rows: float
    picking_ns: float
    """Time to pick them, as recorded."""
    stacking_ns: float
    """Time to stack them, as recorded."""
    whole_ns: float
    """Estimated time to load a batch that is picked at once."""
    batch: int
    """Its rows."""
    share: float
    """The share of loading it that goes then."""

    @classmethod
    def of(cls, view: View, regions: pl.DataFrame) -> RowByRow | None:
        """Return what is loaded so in regions, if that is all that is done there."""
        frames = view.trace.frames
        if not has_like(frames, _OF_TENSORS):
            return None
        calls = frames.filter(named_like(frames, f"{_PICKS}|{_OF_TENSORS}|{_STACKS}"))
        calls = called_in(calls.select("name", "line", "thread", "ts", "dur"), regions)
        picks, stacks = (
            calls.filter(named_like(calls, names)) for names in (_PICKS, _STACKS)
        )
        # A generator is called once for each tensor, and once more to end.
        each = int(named_like(calls, _OF_TENSORS).sum())
        tensors = each / max(1, picks.height) - 1
        one_by_one = (
            stacks.height
            and picks.height > regions.height
            # Several are datasets of datasets, not all of which take many indices.
            and picks["line"].n_unique() == 1
            and tensors >= 1
        )
        if not one_by_one or _calls_others(frames, regions):
            return None
        rows, loading = picks.height / view.steps, loading_ns(view)
        batches = regions.height / view.steps
        whole = assumptions.WHOLE_BATCH_BYTE_NS * sent_bytes(view) + tensors * (
            batches * assumptions.WHOLE_BATCH_TENSOR_NS
            + rows * assumptions.WHOLE_BATCH_ROW_NS
        )
        share = 1 - whole / loading if loading else 0.0
        if share < _LEAST:
            return None
        return cls(
            rows,
            int(picks["dur"].sum()) / view.steps,
            int(stacks["dur"].sum()) / view.steps,
            whole,
            round(picks.height / regions.height),
            share,
        )


def _calls_others(frames: pl.DataFrame, regions: pl.DataFrame) -> bool:
    """Return whether the user's code or a library's runs in regions."""
    files = frames.select("file", "own").drop_nulls().unique()
    library = third_party(text("file"), pl.col("own")).is_not_null()
    others = files.filter(library | pl.col("own"))["file"]
    theirs = frames.select("file", "thread", "ts", "dur").filter(
        pl.col("file").is_in(others.implode())
    )
    return called_in(theirs, regions).height > 0


def sent_bytes(view: View) -> float:
    """Return how many bytes a step copies to the GPU: its batches, or more."""
    copies = copy_directions(view.trace).filter(pl.col("direction") == TO_GPU)
    calls = view.runtime.join(copies, left_on="id", right_on="launch")
    return int(calls["bytes"].sum()) / view.steps
