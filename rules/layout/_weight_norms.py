"""Convolutions whose weights weight_norm computes again in each step, in NCHW."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import fill_false, named, named_like, nth, rewritten

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from traceq.linter import View

# Its kernel writes a contiguous tensor, whatever the order of the parameter is.
_KERNEL = ("aten::_weight_norm_interface",)
_ADVICE = (
    "weight_norm computes {these} weights again in each step, in NCHW, so that"
    " model.to(memory_format=torch.channels_last) does nothing for them: in {where},"
    " call x = x.contiguous(memory_format=torch.channels_last) before the first of"
    " their convolutions whose input has several channels; what follows keeps that"
    " order, only the weights are transposed as before"
)


def with_images(view: View, turned: pl.DataFrame) -> pl.DataFrame:
    """Add to transposes ``normed``, if weight_norm computes the convolution's weight.

    ``images`` is the share of the images among what the convolution transposes, all of
    which other convolutions can have in channels_last: 1 there.
    """
    ops, inputs = view.trace.ops, view.trace.inputs[["dims"]]
    computed = inputs[ops["inputs"].filter(named(ops, _KERNEL)).drop_nulls()]
    weights = computed.select(_text(nth("dims", 0))).to_series().unique()
    if weights.is_empty():
        return turned.with_columns(normed=False, images=1.0)
    back = named_like(ops[["name"]][turned["op"]], "backward").alias("back")
    # A gradient has that of the result before the image and the weight.
    first, second, third = (nth("dims", at) for at in range(3))
    shapes = inputs[ops["inputs"][turned["op"]]].with_columns(back)
    weight = pl.when("back").then(third).otherwise(second)
    image = pl.when("back").then(_size(first) + 2 * _size(second))
    both = image.otherwise(2 * _size(first))
    passes = pl.when("back").then(2).otherwise(1)
    known = shapes.select(
        normed=fill_false(_text(weight).is_in(weights.implode())),
        share=both / (both + passes * _size(weight)),
    )
    share = pl.when("normed").then(pl.col("share").fill_null(0.5)).otherwise(1.0)
    return turned.hstack(known.select("normed", images=share))


def advice_with(row: Mapping[str, Any], advice: str) -> str:
    """Return the advice for a group of transposes, with that for computed weights."""
    if not row["normed"]:
        return advice
    alone = row["normed"] == len(row["id"])
    where = rewritten({**row}) or "forward"
    text = _ADVICE.format(these="the" if alone else "some", where=where)
    return text if alone else f"{advice}; {text}"


def _text(dims: pl.Expr) -> pl.Expr:
    return dims.list.eval(pl.element().cast(pl.String)).list.join(",")


def _size(dims: pl.Expr) -> pl.Expr:
    return dims.list.eval(pl.element().product()).list.first()
