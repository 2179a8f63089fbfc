"""Convolutions of a group of transposes, and the batch norms beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import Evidence, Fix, Gpu, View, fill_false, same_place, text
from traceq.model import dtypes

if TYPE_CHECKING:
    from collections.abc import Iterator

# From this compute capability on, float32 convolutions use tensor cores too.
_TF32 = (8, 0)
# The dimensions of a batch of images.
_RANK = 4
_PLACE = ("file", "line", "function")
_OF_MODEL = ("model", "volumes")
_WRAPPERS = r"^((Distributed)?DataParallel_\d+/)+"


def model_of(module: str) -> pl.Expr:
    """Return the model that a module is in; null of a module by itself."""
    return text(module).str.replace(_WRAPPERS, "").str.extract(r"^([^/]+)/")


def of_volumes() -> pl.Expr:
    """Return whether a convolution, or a norm, is of three dimensions."""
    by_shape = pl.col("dims").list.len() == _RANK + 1
    return fill_false(by_shape) | fill_false(text("module").str.contains(r"3d_\d+$"))


def group(groups: pl.DataFrame, norms: pl.DataFrame) -> pl.Series:
    """Return the group of each norm: of its place, its model, or else the largest."""
    numbered = groups.select(*_PLACE, *_OF_MODEL).with_row_index("group")
    norms = norms.select(
        *_PLACE,
        model=model_of("module"),
        volumes=fill_false(text("module").str.contains(r"3d_\d+$")),
    )
    chosen = pl.Series([None], dtype=pl.UInt32).new_from_index(0, norms.height)
    for keys in (_PLACE, _OF_MODEL):
        known = numbered.drop_nulls("model") if keys is _OF_MODEL else numbered
        placed = norms.join(
            known.unique(keys, keep="first"),
            on=keys,
            how="left",
            nulls_equal=True,
            maintain_order="left",
        )
        chosen = chosen.zip_with(chosen.is_not_null(), placed["group"])
    return chosen.fill_null(0).alias("group")


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


def one_switch() -> list[pl.Expr]:
    """Return the keys of what one call of channels_last mends.

    That is a model's convolutions of images, or of volumes; where the model is not
    known, and where weight_norm makes the weights, those of a line.
    """
    by_place = pl.col("model").is_null() | pl.col("normed")
    return [
        pl.col("volumes").alias("key"),
        pl.when(~by_place).then("model").alias("key_model"),
        *(
            pl.when(by_place).then(key).alias(f"key_{number}")
            for number, key in enumerate(same_place())
        ),
    ]
