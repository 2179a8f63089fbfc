"""Recurrent layers and cells that a loop calls, and what takes the whole sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import View, named

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_LAYERS = {
    "aten::lstm": "nn.LSTM",
    "aten::gru": "nn.GRU",
    "aten::rnn_tanh": "nn.RNN",
    "aten::rnn_relu": "nn.RNN",
}
_CELLS = {op.replace("aten::", ""): layer for op, layer in _LAYERS.items()}
_KNOWN = "where its inputs are known beforehand, as with teacher forcing"
# Of the arguments of a recurrent layer the last one is ``batch_first``.
_BATCH_FIRST = pl.col("values").list.last().eq("True")
_SEQUENCE = 3


def recurrent_advice(row: Mapping[str, Any], view: View) -> str:
    """Return what takes all moments of a recurrent layer or cell that a loop calls."""
    # A sync ends what is compiled at once.
    without = "take the syncs out (SYN001) and " if row["syncs"] else ""
    body = f"otherwise {without}compile the body of the loop with torch.compile"
    for cell, layer in _CELLS.items():
        if f"aten::{cell}_cell" in row["names"]:
            return (
                f"call {layer} on the whole sequence instead of its cell in a loop,"
                f" {_KNOWN}; {body}"
            )
    for op, layer in _LAYERS.items():
        if op in row["names"] and _takes_one_moment(row, view, op):
            return (
                f"call {layer} once on the whole sequence {_KNOWN}; {body}, with"
                f" {layer}Cell, since it does not capture {layer}"
            )
    return ""


def _takes_one_moment(row: Mapping[str, Any], view: View, op: str) -> bool:
    ops = view.trace.ops[[*row["ops"]]]
    calls = view.with_inputs(ops.filter(named(ops, [op])))
    sizes = pl.col("dims").list.first()
    # Without its batch, a sequence is first.
    batch_first = _BATCH_FIRST & (sizes.list.len() == _SEQUENCE)
    length = pl.when(batch_first).then(sizes.list.get(1, null_on_oob=True))
    lengths = calls.select(
        length.otherwise(sizes.list.get(0, null_on_oob=True))
    ).to_series()
    return bool(lengths.eq(1).all()) and lengths.null_count() == 0
