"""Convolutions of a group of transposes, and the batch norms beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import Evidence, Fix, Gpu, View, fill_false, text
from traceq.model import dtypes

if TYPE_CHECKING:
    from collections.abc import Iterator

# From this compute capability on, float32 convolutions use tensor cores too.
_TF32 = (8, 0)
# The dimensions of a batch of images.
_RANK = 4
_PLACE = ("file", "line", "function")


def group(groups: pl.DataFrame, norms: pl.DataFrame) -> pl.Series:
    """Return the group of each norm: that of its place, or else the largest."""
    place = groups.select(*_PLACE).with_row_index("group").unique(_PLACE, keep="first")
    placed = norms.select(_PLACE).join(
        place, on=_PLACE, how="left", nulls_equal=True, maintain_order="left"
    )
    return placed["group"].fill_null(0)


def faster(norms: pl.DataFrame) -> list[Fix]:
    """Return what goes of batch norms in channels_last."""
    spent = int(norms["dur"].sum())
    if not spent:
        return []
    share = View.saved_share(spent, float(norms["then_ns"].sum()))
    return [Fix(kernels=norms["id"], kernel_share=share)]


def norm_lines(norms: pl.DataFrame, steps: int) -> Iterator[Evidence]:
    if norms.height:
        spent, then = (float(norms[of].sum()) / steps for of in ("dur", "then_ns"))
        yield Evidence("norms", value=spent, unit="ns", note="of batch norms a step")
        note = "of them in channels_last, estimated"
        yield Evidence("then", value=then, unit="ns", note=note)


def of_one_dimension() -> pl.Expr:
    """Return whether a convolution is of one dimension, which has no channels_last."""
    dims = pl.col("dims")
    height = dims.list.get(2, null_on_oob=True)
    # cuDNN's operator is given a height of 1, the backward's none.
    by_shape = (dims.list.len() < _RANK) | (dims.list.len().eq(_RANK) & (height == 1))
    return fill_false(by_shape) | fill_false(
        text("module").str.contains(r"Conv1d_[0-9]+$")
    )


def on_tensor_cores(gpu: Gpu) -> pl.Expr:
    """Return whether the convolution of a kernel may use tensor cores."""
    if gpu.amd or gpu.capability >= _TF32:
        return pl.lit(value=True)
    return text("dtype").is_in(dtypes.SHORT_HALF)
