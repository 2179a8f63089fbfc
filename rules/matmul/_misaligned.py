"""Dimensions of matmuls that are not a multiple of 8, and what to pad them to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import nth

if TYPE_CHECKING:
    from traceq.linter import Row

_ALIGNED = 8
# Large sizes are padded to this, which suits the tiles of all kernels.
_TILE = 64
_VOCABULARY = 8192
# Both of their matrices are computed: neither is a weight.
_OF_BATCHES = ("aten::bmm", "aten::baddbmm")


def misaligned() -> pl.Expr:
    """Return the longest row that is not a multiple of 8 elements, if any."""
    rows = [nth("rows", at) for at in range(3)]
    return pl.max_horizontal(pl.when(row % _ALIGNED != 0).then(row) for row in rows)


def padded(size: pl.Expr) -> pl.Expr:
    """Return a size, padded to a multiple of 8."""
    return (size + _ALIGNED - 1) // _ALIGNED * _ALIGNED


def message(row: Row, what: str) -> str:
    """Return the sentence of a finding."""
    if row["loaded"] is None:
        size = f"a dimension of {row['size']}, not a multiple of 8"
        return f"{size}, would put {what} a step on unaligned kernels"
    kernels = f"align{row['loaded']} kernels"
    if row["size"] is None:
        return (
            f"{what} a step on {kernels}, likely because of a dimension that is not a"
            " multiple of 8"
        )
    return (
        f"a dimension of {row['size']}, not a multiple of 8, puts {what} a step on"
        f" {kernels}"
    )


def example(page: str, row: Row) -> str:
    """Return the page's example with a program's own sizes: of a vocabulary's head."""
    size = row["size"]
    widths = [
        left[-1]
        for left, right in (pair.values() for pair in row["pairs"])
        if left and right and right[-1] == size and left[-1] == right[0]
    ]
    if size is None or size < _VOCABULARY or not widths:
        return ""
    rows = -(-size // _TILE) * _TILE
    sizes = {"768": widths[0], "50257": size, "50304": rows}
    for shown, own in sizes.items():
        page = page.replace(shown, str(own))
    return page


def advice(row: Row) -> str:
    """Return the size to pad to, and where: ``matmuls`` are the names of the ops."""
    size = row["size"]
    if size is None:
        return (
            "pad the dimensions of the matrices to multiples of 8, or better 64, and"
            " let slices begin at multiples of 8"
        )
    step = _TILE if size > _TILE * _ALIGNED else _ALIGNED
    padded = -(-size // step) * step
    advice = f"pad {size} to {padded}, a multiple of {step}"
    if all(name in _OF_BATCHES for name in row["matmuls"]):
        return (
            f"{advice}, in the tensors that both matrices are made of, and mask what is"
            " new; where these are attention's scores, call"
            " F.scaled_dot_product_attention, which takes any length"
        )
    if size < _VOCABULARY:
        return (
            f"{advice}, where the tensor is made: as features of a layer, or in the"
            " batch; a copy in every step would cost what it saves"
        )
    return (
        f"{advice}: if it is the vocabulary, give embedding and head {padded} rows; no"
        " target is ever one of the new rows"
    )
