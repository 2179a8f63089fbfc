"""Batch norms in training inside of a loop, which keep statistics of each iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import View, named

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_NORMS = (
    *("aten::batch_norm", "aten::_batch_norm_impl_index", "aten::native_batch_norm"),
    *("aten::cudnn_batch_norm", "aten::_native_batch_norm_legit"),
    *("aten::_batch_norm_with_update", "aten::miopen_batch_norm"),
)
# Their fourth argument is the running mean, and the sixth whether they train.
_MEAN, _TRAINS = 3, 5
STATISTICS = (
    "put the iterations into the channels, as [n, rows, C] to [rows, n * C], and call"
    " torch.nn.functional.batch_norm once, with weight and bias repeated n times: each"
    " is still normalised by its own statistics, which stacking along the batch would"
    " change; update the running statistics by the mean of the n, with a momentum of 1"
    " - (1 - momentum) ** n, which changes them slightly: check; an iteration of"
    " another size stays a call of its own"
)


def batch_norms(row: Mapping[str, Any], view: View) -> bool:
    """Return whether a loop has batch norms in training that keep statistics.

    Without their arguments nobody knows whether they train: those with a backward do.
    """
    if not set(row["names"]) & {*_NORMS}:
        return False
    ops = view.trace.ops[["name", "inputs", "forward"]][[*row["ops"]]]
    norms = ops.filter(pl.col("forward").is_null() & named(ops, _NORMS))
    known = view.with_inputs(norms.drop_nulls("inputs"))
    values = known["values"].list.get(_TRAINS, null_on_oob=True)
    if not values.drop_nulls().is_in(["True", "False", "true", "false"]).any():
        return bool(row["back"])
    shape = known["dims"].list.get(_MEAN, null_on_oob=True).list.len().fill_null(0)
    trains = values.str.to_lowercase().eq("true").fill_null(value=False)
    return bool((trains & (shape > 0)).any())
