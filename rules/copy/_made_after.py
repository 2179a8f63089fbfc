"""Tensors that the DataLoader did not pin, since the program makes them after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.time.op_calls import on_host
from traceq.linter import fill_false, has_like, named, named_like, nth, text
from traceq.model import dtypes, names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from traceq.linter import View

_PINS = r"^torch/utils/data/_utils/pin_memory\.py"
_MAKES = tuple(
    f"aten::{op}"
    for op in (
        *("cat", "stack", "hstack", "vstack", "index", "index_select", "gather", "pad"),
        *("constant_pad_nd", "contiguous", "clone", "flip", "repeat", "one_hot"),
        *("add", "sub", "mul", "div", "true_divide", "rsub", "float", "normalize"),
        *("masked_select", "roll", "where"),
    )
)
_CASTS = ("aten::to",)
# What only looks at a tensor in another way, or is sent as well.
_BESIDE = tuple(
    f"aten::{op}"
    for op in (
        *("detach", "detach_", "view", "reshape", "unsqueeze", "squeeze", "permute"),
        *("transpose", "t", "expand", "select", "slice", "flatten"),
    )
)
_MADE = (
    "it is made on the CPU by {} a moment before: send what that takes, and run it on"
    " the GPU; or do it in the Dataset or in the collate function, before the"
    " DataLoader pins the batch (pin_memory=True), and copy it with non_blocking=True"
)
_NOT_PINNED = (
    "the program pins some of what it sends, as by pin_memory=True of the DataLoader,"
    " and not this: a batch of a class of its own, not of tensors, lists or dicts,"
    " needs a pin_memory() method; a tensor that is made after loading is better made"
    " on the GPU; copy what is pinned with .to(device, non_blocking=True)"
)


def advice_on_made(view: View, row: Mapping[str, Any]) -> str:
    """Return advice on what is sent unpinned though it could be, or is made before.

    Empty where neither is seen.
    """
    if maker := _maker(view, row):
        return _MADE.format(maker)
    return _NOT_PINNED if _pins(view) else ""


def _pins(view: View) -> bool:
    """Return whether the program is seen to pin what it sends."""
    pinned = named_like(view.kernels, names.PINNED) & named_like(
        view.kernels, names.HTOD
    )
    return bool(pinned.any()) or has_like(view.trace.frames, _PINS)


def _maker(view: View, row: Mapping[str, Any]) -> str:
    """Return the operator that makes most of the tensors of a group on the CPU."""
    ops = view.trace.ops
    requests = pl.Series(row["requests"], dtype=pl.UInt32)
    place = ("thread", "file", "function", "via")
    threads = ops["thread"][requests].unique()
    chosen = ops["parent"].is_null() & ops["thread"].is_in(threads.implode())
    rows = ops[["id", "ts", "name", *place]].filter(chosen).sort("thread", "ts")
    copies = rows["id"].is_in(ops["parent"].drop_nulls().unique().implode())
    casts = named(rows, _CASTS) & copies & on_host(view.trace, rows["id"])
    casts &= _widens(view, rows["id"], row["dst"])
    makes = (named(rows, _MAKES) & on_host(view.trace, rows["id"])) | casts
    sent = rows["id"].is_in(requests.implode())
    nothing = named(rows, _CASTS) & ~copies
    skipped = named(rows, _BESIDE) | nothing
    name = pl.when(pl.col("makes")).then(text("name")).otherwise(pl.lit(""))
    before = (
        rows.with_columns(makes=makes & ~sent, sent=sent, skipped=skipped & ~sent)
        .filter(~pl.col("skipped"))
        .with_columns(maker=name.shift(1).over(place))
        .filter("sent", pl.col("file").is_not_null())
    )
    counts = before.filter(pl.col("maker") != "")["maker"].value_counts(sort=True)
    if not counts.height or 2 * counts["count"].sum() <= before.height:
        return ""
    called = str(counts["maker"][0]).removeprefix("aten::")
    return "a cast (`.to(dtype)`, `.float()`)" if called == "to" else f"`{called}`"


def _widens(view: View, ops: pl.Series, to: str | None) -> pl.Series:
    """Return which casts are seen to make elements wider, so that more is sent."""
    inputs = view.trace.inputs[view.trace.ops["inputs"][ops]]
    before = inputs.select(
        nth("types", 0).replace_strict(dtypes.ALL_SIZES, default=None)
    )
    wide = dtypes.ALL_SIZES.get(to or "", 0)
    return fill_false(before.to_series() < wide)
