"""Regions of the forward that the backward computes again, and their memory."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import callers
from traceq.linter import (
    END,
    NOWHERE,
    Place,
    asof,
    at_function,
    dataclass,
    named,
    named_like,
    nearest,
    text,
)

if TYPE_CHECKING:
    from traceq.linter import View

# Only a forward calls these: formulas of gradients call what they consist of.
_FORWARD = (
    "aten::linear",
    "aten::conv1d",
    "aten::conv2d",
    "aten::conv3d",
    "aten::embedding",
    "aten::layer_norm",
    "aten::rms_norm",
    "aten::group_norm",
    "aten::batch_norm",
    "aten::gelu",
    "aten::dropout",
    "aten::scaled_dot_product_attention",
)
# Nodes of C++ run Python only to unpack what checkpoint(use_reentrant=False) did not
# save. Other autograd functions may have a backward that computes something again.
_NODE = r"^([A-Za-z]+Backward\d+|CheckpointFunctionBackward)$"
_REENTRANT = "CheckpointFunctionBackward"
_ENGINE = r"^autograd::engine"
_FILE = "torch/utils/checkpoint.py"
_CPU = 0
# All layers are called in a few places. Heuristic threshold.
_MOST_CALLS = 64


def recomputed_regions(view: View) -> pl.DataFrame:
    """Return the regions of the steady steps that the backward computes again.

    A region has ``node``, the backward op that it is in, ``step``, ``start`` and
    ``end`` on the host, and ``ops``, its outermost ops.
    """
    ops = view.ops
    parent = view.trace.ops["name"].cast(pl.String)[ops["parent"]]
    inside = ops.filter(
        parent.str.contains(_NODE).fill_null(value=False)
        & ops["sequence"].is_not_null()
        & (ops["forward_thread"] == _CPU).fill_null(value=False)
        & ~named_like(ops, _ENGINE)
    )
    inside = inside.with_columns(is_forward=named(inside, _FORWARD))
    nodes = view.trace.ops.select("name", node="id", start="ts")
    return (
        inside.group_by(node="parent", maintain_order=True)
        .agg(
            pl.col("step").first(),
            pl.col("is_forward").any(),
            end=END.max(),
            ops=pl.col("id"),
        )
        .join(nodes, on="node", maintain_order="left")
        .filter(pl.col("is_forward") | (text("name") == _REENTRANT))
    )


def recomputed_kernels(view: View, regions: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels that the ops of these regions launch."""
    ops = view.trace.ops
    marked = ops["id"].is_in(regions["ops"].explode().implode())
    around = nearest(ops["parent"], marked)[view.kernels["op"]]
    return view.kernels.filter(around.is_not_null())


@dataclass(frozen=True)
class Memory:
    """Memory of the GPU with checkpointing; each is none where it was not recorded."""

    saved: int | None
    """Activations of a step that are computed again instead of kept."""
    peak: int | None
    """The most that was allocated at once."""
    device: int | None
    """Memory of the GPU."""

    @property
    def free(self) -> int | None:
        """Memory that is free at the peak, if that is known."""
        if self.device is None or self.peak is None:
            return None
        return self.device - self.peak

    def left(self) -> float | None:
        """Return the share of the GPU's memory that is free without checkpointing."""
        if self.device is None or self.peak is None or self.saved is None:
            return None
        return 1 - (self.peak + self.saved) / self.device


def memory_of(view: View, regions: pl.DataFrame) -> Memory:
    """Return what checkpointing saves, and what is free.

    A region allocates its activations when it runs again, and they live until its
    gradients are computed.
    """
    sizes = view.trace.devices.filter("used")["memory"].drop_nulls()
    device = int(sizes[0]) if len(sizes) and sizes[0] > 0 else None
    curve = _curve(view)
    if curve.is_empty():
        return Memory(None, None, device)
    before = asof(regions, curve, "start", "ts")["allocated"].fill_null(0)
    after = asof(regions, curve, "end", "ts")["allocated"].fill_null(0)
    saved = max(0, int((after - before).sum()) // view.steps)
    return Memory(saved, int(curve["allocated"].sort()[-1]), device)


def _curve(view: View) -> pl.DataFrame:
    """Return what is allocated on the GPU after each event that changes it."""
    devices = view.kernels["device"].mode()
    return view.trace.memory.filter(
        pl.col("device_type") != _CPU,
        pl.col("device").is_in(devices.implode()),
        pl.col("allocated").is_not_null(),
    ).sort("ts")


def checkpoint_place(view: View, regions: pl.DataFrame) -> Place:
    """Return the user's function that calls checkpoint(), and the library's in it."""
    frames = view.trace.frames
    calls = frames.filter(
        text("file").str.ends_with(_FILE) & (text("function") == "checkpoint"),
        pl.col("ts") >= view.ops["ts"].min(),
    )
    some = calls.head(_MOST_CALLS)
    places = callers.callers(frames, some)
    if places.is_empty():
        return _place_of_ops(view, regions)
    own = places.row(0, named=True)
    libraries = callers.library_calls(frames, some).drop_nulls("library").rows()
    via = at_function(*Counter(libraries).most_common(1)[0][0]) if libraries else None
    return Place(own["file"], own["line"], own["function"], via=via)


def _place_of_ops(view: View, regions: pl.DataFrame) -> Place:
    """Return where the ops of the first region are called."""
    first = view.trace.ops[regions["ops"][0]]
    placed = first.filter(pl.col("file").is_not_null() | pl.col("module").is_not_null())
    return view.place(placed.row(0, named=True)) if placed.height else NOWHERE
