"""Causes of work on the CPU: what its tensors are, and where they are from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.sync_calls import TO_GPU, copy_directions
from traceq.linter import END, asof, fill_false, named_like
from traceq.model import dtypes, names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from traceq.linter import View

# What is copied is cast by what works on it, or a part of it is used. Heuristic.
_LEAST_SHARE = 1 / 8
_LEAST_BYTES = 4096
_COMPARES = r"^aten::(lt|le|gt|ge|eq|ne|logical_\w+|bitwise_\w+)_?$"
FROM_GPU = (
    "what it works on was copied from the GPU a moment before: compute it there, and"
    " copy the result alone; a metric can be computed once, of what many steps keep on"
    " the GPU"
)
OF_BATCH = (
    "it works on the batch that was just loaded: send the batch as it is, and do this"
    " on the GPU; or do it in the Dataset or in the collate function, so that workers"
    " of the DataLoader do it ahead"
)


def cause_of_data(view: View, chain: Sequence[Mapping[str, Any]], size: int) -> str:
    """Return advice by where the data of operators is from; empty if it is unknown.

    The size is that of the tensor that the first operator works on.
    """
    ops = view.trace.ops[["thread", "ts"]][list(chain[0]["ids"])]
    before = asof(
        ops,
        view.trace.runtime[["id", "thread", "ts"]].rename({"ts": "asked"}),
        "ts",
        "asked",
        by="thread",
    )
    copies = copy_directions(view.trace).filter(pl.col("direction") != TO_GPU)
    least = max(_LEAST_SHARE * size, _LEAST_BYTES)
    copied = view.trace.runtime["op"][copies["launch"].filter(copies["bytes"] >= least)]
    last = view.trace.runtime["op"][before["id"]]
    from_gpu = fill_false(last.is_in(copied.drop_nulls().implode()))
    if 2 * int(from_gpu.sum()) > ops.height:
        return FROM_GPU
    return OF_BATCH if _after_loading(view, before) else ""


def _after_loading(view: View, before: pl.DataFrame) -> bool:
    """Return whether a batch was loaded since the GPU was last asked for anything."""
    regions = view.trace.annotations
    loads = named_like(regions, names.DATA_REGION) & ~regions["on_gpu"]
    regions = regions.filter(loads).select("thread", loaded=END)
    if not regions.height:
        return False
    rows = asof(before, regions, "ts", "loaded", by="thread")
    since = pl.col("loaded") >= pl.col("asked").fill_null(0)
    return 2 * int(rows.select(fill_false(since).sum()).item()) > before.height


def compares(chain: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether operators make a mask, by comparing tensors."""
    return any(re.match(_COMPARES, row["called"]) for row in chain)


def changes(view: View, chain: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether operators are seen to make another tensor from step to step.

    Their sizes or arguments differ, or they take other tensors than those they made.
    """
    if any(row["kinds"] > 1 for row in chain):
        return True
    for row in chain:
        if row["inputs"] is None:
            continue
        types, dims = view.trace.inputs.select("types", "dims").row(row["inputs"])
        tensors = [
            kind
            for kind, sizes in zip(types or (), dims or (), strict=False)
            if kind in dtypes.ALL_SIZES and sizes
        ]
        if len(tensors) > 1:
            return True
    return False
