"""Remedies of losses of GPU time that no other rule names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from ._convolution_remedies import NARROW, search
from ._remedies import remedy as remedy_of_op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.linter import Row, View

_LOOK = "look at these ops with traceq roofline: at their shapes, strides and dtypes"
_COMPILE = ", and at a torch.compile of the function"
_MADE = re.compile(r"mm$|matmul|linear|conv|attention|rnn|^Torch-Compiled")
_CONVOLUTION = re.compile(r"conv")
_JOINED = re.compile(r"^aten::(cat|stack)$")
_IN_PARTS = (
    "make the tensor that is joined once, in its full size, and write the parts into"
    " it, where it is joined again and again"
)
_MOST = 2
_DTYPE, _ALGORITHM, _BLOCKS, _LAYOUT, _CONTENTION = (
    "wider dtype than needed",
    "slow algorithm",
    "low occupancy or a partial wave",
    "layout changes",
    "contention between streams",
)
_LINE = ("part", "name", "file", "line", "function")
# Losses below the largest are too small to be asked for.
_LARGEST = 20


class Loss(NamedTuple):
    """A loss, with what may make it smaller."""

    row: Row
    remedy: str | None
    """Its remedy; empty if none is known, None if nothing is known to help."""


def remedied(view: View, losses: pl.DataFrame) -> list[Loss]:
    """Return the largest losses that something may make smaller, the largest first."""
    rows = _with_inputs(view, losses.head(_LARGEST))
    return [Loss(row, _remedy(view, row)) for row in rows]


def _with_inputs(view: View, losses: pl.DataFrame) -> list[Row]:
    """Return losses with the inputs of the op that loses most in each."""
    texts = [name for name in _LINE if name != "line"]
    parts = view.gpu_account.parts.with_columns(pl.col(texts).cast(pl.String))
    longest = (
        parts.drop_nulls("op")
        .join(losses.select(_LINE), on=_LINE, nulls_equal=True)
        .sort("time", descending=True, maintain_order=True)
        .unique(_LINE, keep="first", maintain_order=True)
        .select(*_LINE, id="op")
    )
    inputs = view.trace.ops["inputs"][longest["id"]]
    ops = view.with_inputs(longest.with_columns(inputs=inputs)).drop("inputs", "id")
    return losses.join(
        ops, on=_LINE, how="left", nulls_equal=True, maintain_order="left"
    ).rows(named=True)


def advice(view: View, losses: Sequence[Loss]) -> str:
    """Return what to do about the largest losses, the largest first."""
    remedies = dict.fromkeys(loss.remedy for loss in losses if loss.remedy)
    if remedies:
        return "; ".join([*remedies][:_MOST])
    # A compiler calls the same kernels of matmuls and convolutions.
    name = losses[0].row["name"] or ""
    fused = not view.compiled and not _MADE.search(name)
    return _LOOK + (_COMPILE if fused else "")


def _remedy(view: View, row: Row) -> str | None:
    """Return the remedy of one loss; empty if none is known, None if none helps."""
    name, part = row["name"] or "", row["part"]
    if part == _CONTENTION:
        return None
    if _JOINED.match(name) and part == _LAYOUT:
        # Autograd refuses tensors that are written to after they were used.
        return None if view.trains else _IN_PARTS
    if _CONVOLUTION.search(name):
        return _of_convolution(view, row)
    if part != _ALGORITHM:
        return ""
    known = remedy_of_op(view, row | {"name": name})
    # What a matmul takes alone is worth knowing, whatever its shapes are.
    return known.advice if known.helps or _MADE.search(name) else None


def _of_convolution(view: View, row: Row) -> str | None:
    if row["part"] == _DTYPE:
        return NARROW
    # How much of the GPU a convolution leaves idle, its batch decides.
    chosen = row["part"] in (_ALGORITHM, _BLOCKS)
    return search(view, row) or None if chosen else ""
