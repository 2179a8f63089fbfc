"""Work of the training process while it loads a batch, besides making samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import END, asof, dataclass, has_like, named, named_like, text

from ._workers import called_in

if TYPE_CHECKING:
    from traceq.linter import View

_FILES = r"^torch/utils/data/_utils/"
_STACKS = rf"{_FILES}collate\.py\(\d+\): (default_)?collate$"
_PINS = rf"{_FILES}pin_memory\.py\(\d+\): pin_memory$"
_FETCHES = rf"{_FILES}fetch\.py\(\d+\): fetch$"
_SHUFFLES = ("aten::randperm",)
# Most of loading is what takes this share of it. Heuristic threshold.
_MOSTLY = 0.5
# A collate function sends a batch by one call or two.
_ONCE, _OFTEN = 1, 2
_ON_GPU = (
    "worker processes cannot take over what runs on the GPU: where the Dataset or the"
    " collate function sends samples there, return CPU tensors and send the batch once"
    " it is loaded; where the data is on the GPU already, index whole batches, with a"
    " BatchSampler as sampler and batch_size=None, or slices of torch.randperm"
)
_STACKED = (
    "; most of it is stacking samples: where the data is in memory, index whole batches"
    " instead, by a BatchSampler as sampler and batch_size=None, or by __getitems__ of"
    " the Dataset and a collate_fn that takes its result as it is"
)
_SENT = (
    "; send the batch after it is loaded, not in the Dataset or the collate function:"
    " worker processes cannot use the GPU"
)
_PINNED = (
    "; most of it is copying the batch into pinned memory, which pays where a thread"
    " does it: with workers, or leave pin_memory=False"
)
_SHARED_OUT = (
    "; the items of an IterableDataset have to be shared out among the workers"
    " (torch.utils.data.get_worker_info), or each of them makes all"
)


@dataclass(frozen=True)
class LoadingKind:
    """Loading of batches, as far as operators and stacks show it."""

    gpu_calls: float
    """Calls of the runtime that launch or copy, in a batch."""
    gpu_share: float
    """The share of loading in operators that make these calls."""
    stacking: float
    """The share of loading that stacks samples."""
    pinning: float
    """The share of loading that copies the batch into pinned memory."""
    iterable: bool
    """True if an IterableDataset is seen to be what is loaded."""
    shuffles: bool
    """True if the order of samples is seen to be random."""

    @classmethod
    def of(cls, view: View, regions: pl.DataFrame) -> LoadingKind:
        """Return the kind of loading in regions."""
        loading = max(1, int((regions["end"] - regions["start"]).sum()))
        frames, ops = view.trace.frames, view.ops
        calls = _inside(view.runtime.filter(pl.col("kernels") > 0), regions)
        asking = view.outermost_ops[calls["op"].drop_nulls()].drop_nulls().unique()
        stacks, pins, fetches = (
            _outermost(called_in(_frames(frames, pattern), regions))
            for pattern in (_STACKS, _PINS, _FETCHES)
        )
        begun = frames.filter("own", text("function") == "__iter__")
        begun = begun.select("thread", "ts", "dur")
        within = fetches.select("thread", start="ts", end=END)
        return cls(
            calls.height / max(1, regions.height),
            min(1.0, int(view.trace.ops["dur"][asking].sum()) / loading),
            int(stacks["dur"].sum()) / loading,
            int(pins["dur"].sum()) / loading,
            bool(within.height and called_in(begun, within).height),
            bool(_inside(ops.filter(named(ops, _SHUFFLES)), regions).height),
        )

    @property
    def on_gpu(self) -> bool:
        """True if loading works on the GPU, as worker processes cannot."""
        return self.gpu_calls > _OFTEN

    @property
    def advice_on_gpu(self) -> str:
        """Advice on what loads by the GPU."""
        return _ON_GPU

    @property
    def more(self) -> str:
        """Advice beside that to use workers."""
        stacked = _STACKED if self.stacking > _MOSTLY else ""
        pinned = _PINNED if self.pinning > _MOSTLY else ""
        sent = _SENT if self.gpu_calls >= _ONCE else ""
        return f"{sent}{stacked}{pinned}{_SHARED_OUT if self.iterable else ''}"


def _frames(frames: pl.DataFrame, pattern: str) -> pl.DataFrame:
    columns = ("name", "thread", "ts", "dur")
    if not has_like(frames, pattern):
        return frames.select(columns).clear()
    return frames.filter(named_like(frames, pattern)).select(columns)


def _outermost(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that are in none of the others: collate calls itself."""
    ordered = calls.sort("thread", "ts", -pl.col("dur"))
    before = END.cum_max().shift(1).over("thread").fill_null(0)
    return ordered.filter(pl.col("ts") >= before)


def _inside(events: pl.DataFrame, regions: pl.DataFrame) -> pl.DataFrame:
    """Return the events that begin in one of the regions."""
    around = regions.select("thread", began="start", until="end")
    rows = asof(events, around, "ts", "began", by="thread")
    return rows.filter(pl.col("ts") < pl.col("until"))
