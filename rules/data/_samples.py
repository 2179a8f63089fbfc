"""Samples in memory that a DataLoader picks one by one, and stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.base import assumptions
from traceq.linter import dataclass, has_like, named_like, text

from ._rows import sent_bytes
from ._workers import called_in, loading_ns

if TYPE_CHECKING:
    import polars as pl

    from traceq.linter import View

    from ._loading_kinds import LoadingKind

# Each field of the samples is stacked by one of these.
_FIELDS = (
    r"^torch/utils/data/_utils/collate\.py\(\d+\):"
    r" collate_(tensor|numpy_scalar|float|int)_fn$"
)
# Fewer samples in a batch, or those that take a larger part of loading to make, are
# not picked out of arrays. Heuristic thresholds.
_MANY, _CHEAP = 16, 0.25
# Most of loading is stacking them then. Heuristic threshold.
_MOSTLY = 0.5
# A smaller fraction of the loading time is not worth another loader. Heuristic.
_LEAST = 0.3


@dataclass(frozen=True)
class CheapSamples:
    """Loads of samples that take less to make than to stack."""

    samples: int
    """Number of them in a batch."""
    making_ns: float
    """Time a step to make them, as recorded."""
    whole_ns: float
    """Estimated time a step to load batches that are picked at once."""
    share: float
    """The share of loading that goes then."""

    @classmethod
    def of(
        cls, view: View, regions: pl.DataFrame, kind: LoadingKind
    ) -> CheapSamples | None:
        """Return the loads of this kind in regions, if that is most of loading."""
        frames = view.trace.frames
        if kind.stacking < _MOSTLY or not has_like(frames, _FIELDS):
            return None
        columns = frames.select("name", "own", "function", "thread", "ts", "dur")
        made = called_in(
            columns.filter("own", text("function") == "__getitem__"), regions
        )
        fields = called_in(columns.filter(named_like(frames, _FIELDS)), regions)
        samples = made.height / max(1, regions.height)
        length = int((regions["end"] - regions["start"]).sum())
        making = int(made["dur"].sum())
        if samples < _MANY or making > _CHEAP * length or not fields.height:
            return None
        batches, loading = regions.height / view.steps, loading_ns(view)
        each = fields.height / regions.height
        # As measured of a TensorDataset, whose rows are picked the same way.
        whole = assumptions.WHOLE_BATCH_BYTE_NS * sent_bytes(view) + each * batches * (
            assumptions.WHOLE_BATCH_TENSOR_NS + samples * assumptions.WHOLE_BATCH_ROW_NS
        )
        share = 1 - whole / loading if loading else 0.0
        if share < _LEAST:
            return None
        return cls(round(samples), making / view.steps, whole, share)
