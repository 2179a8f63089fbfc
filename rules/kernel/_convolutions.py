"""Convolutions of images, and the algorithms that cuDNN has for them."""

from __future__ import annotations

import polars as pl

from traceq.linter import HALF, View, fill_false, named_like, nth

SEARCH = "torch.backends.cudnn.benchmark = True"
"""Statement that has cuDNN measure its algorithms."""
_TRANSFORM = "fft2d_"
_IMAGES = 4


def images(ops: pl.DataFrame) -> pl.DataFrame:
    """Return the convolutions of images, with what they are of.

    Added are the shapes ``image`` and ``weight``, the rows of the ``window``, the
    ``stride`` as text, and whether it is in a ``half``-precision dtype.
    """
    back = pl.col("name").str.ends_with("_backward")
    # The gradient comes before the image and the weight; lists after them.
    return (
        ops.with_columns(
            image=pl.when(back).then(nth("dims", 1)).otherwise(nth("dims", 0)),
            weight=pl.when(back).then(nth("dims", 2)).otherwise(nth("dims", 1)),
            stride=pl.when(back).then(nth("values", 4)).otherwise(nth("values", 3)),
            half=nth("types", 0).is_in(HALF),
        )
        .filter(fill_false(pl.col("image").list.len() == _IMAGES))
        .with_columns(window=pl.col("weight").list.get(2, null_on_oob=True))
    )


def transformed(view: View) -> pl.Expr:
    """Return whether an op has Fourier transforms that another algorithm may avoid."""
    kernels = view.trace.kernels
    transforms = kernels["id"].filter(named_like(kernels, _TRANSFORM))
    if not len(transforms) or not may_search(view):
        return pl.lit(value=False)
    has = pl.element().is_in(transforms.implode())
    return pl.col("kernels").list.eval(has).list.any()


def may_search(view: View) -> bool:
    """Return whether cuDNN may search for algorithms, and does not, as far as known."""
    rank = view.trace.rank
    return not (rank and rank.cudnn_benchmark) and not view.sizes_vary
