"""Layers around convolutions that do not work on, or do not keep, channels_last."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import at_function, fill_false, has_like, named_like, text
from traceq.model import names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import View

_CONVOLUTION = r"^aten::(_?convolution|conv2d|conv_transpose2d|cudnn_convolution)"
# Their kernels for GPUs take NCHW only, and copy what is not.
_NCHW_ONLY = (
    r"^aten::(instance_norm|(native_)?group_norm|(reflection|replication)_pad2d)$"
)
_OTHERS = r"^aten::((native_|cudnn_)?batch_norm|(adaptive_)?(max|avg)_pool2d)"
_LAYERS = f"{_CONVOLUTION}|{_NCHW_ONLY}|{_OTHERS}"
_IMAGES = 4
_ADVICE = "call model = model.to(memory_format=torch.channels_last) once, and "
# Module.to() asks it of the weights of all convolutions.
_BESIDE_VOLUMES = (
    "call .to(memory_format=torch.channels_last) on the modules whose convolutions are"
    " of images, not on the model: weights of Conv3d raise an error; and "
)
_VOLUMES = (
    "call {} = {}.to(memory_format=torch.channels_last_3d) once{}, and"
    " .contiguous(memory_format=torch.channels_last_3d) on what their first convolution"
    " takes; it was not tried on a GPU: time it"
)
_BESIDE_IMAGES = ", not on the model: weights of Conv2d raise an error"
_INPUTS = "images.to(device, memory_format=torch.channels_last) for the images"
_LARGER = (
    ".contiguous(memory_format=torch.channels_last) on the images of 4 dims before the"
    " first convolution, as what is copied to the GPU has {}"
)
_VIEW = (
    "write flatten(1) or reshape instead of view in {}, which fails in channels_last;"
    " then "
)
_WEIGHTS = (
    "; weights that {} passes to F.conv2d, and that are no parameters of a module, need"
    " the same by themselves"
)


def in_nchw(view: View) -> pl.Series:
    """Return for each op whether it is a convolution next to a layer for NCHW only.

    In channels_last its input, or its result, would be copied to NCHW there. So is
    what it calls, and its backward.
    """
    ops = view.trace.ops
    outermost = view.outermost_ops
    layers = ops[["id", "name", "thread", "ts"]].filter(
        outermost == ops["id"], named_like(ops, _LAYERS)
    )
    layers = layers.sort("thread", "ts")
    layers = layers.with_columns(only=named_like(layers, _NCHW_ONLY))
    near = pl.any_horizontal(
        pl.col("only").shift(by).over("thread") for by in (-1, 1)
    ).fill_null(value=False)
    stuck = layers["id"].filter(layers.select(near).to_series())
    forward = outermost[ops["forward"][outermost]]
    own = outermost.zip_with(forward.is_null(), forward)
    return fill_false(own.is_in(stuck.implode()))


def of_instance_norms(view: View, ops: pl.Series) -> pl.Series:
    """Return which ops are of instance norms, which view their images as one."""
    outermost = view.outermost_ops[ops]
    forward = view.outermost_ops[view.trace.ops["forward"][outermost]]
    of = outermost.zip_with(forward.is_null(), forward)
    return fill_false(
        view.trace.ops["name"][of].cast(pl.String) == "aten::instance_norm"
    )


def advice_for(
    view: View, convolutions: pl.Series, *, volumes: bool
) -> tuple[str, bool]:
    """Return how to use channels_last, and whether the example of the page fits."""
    images = _has(view, 2)
    if volumes:
        module = "module" if images else "model"
        return _VOLUMES.format(module, module, _BESIDE_IMAGES if images else ""), False
    beside = _has(view, 3)
    views = ", ".join(dict.fromkeys(_flattening(view)))
    others = _copied_dims(view)
    advice = _BESIDE_VOLUMES if beside else _ADVICE
    advice += _LARGER.format(others) if others else _INPUTS
    if views:
        advice = _VIEW.format(views) + advice
    if place := _functional(view, convolutions):
        advice += _WEIGHTS.format(place)
    return advice, not (others or views or beside)


def _has(view: View, dimensions: int) -> bool:
    """Return whether the program has convolutions of this many dimensions."""
    return has_like(view.trace.ops, rf"^aten::conv(_transpose)?{dimensions}d$")


def _flattening(view: View) -> Iterator[str]:
    """Yield the places of views that join the channels of images with their pixels."""
    trace, outermost = view.trace, view.outermost_ops
    ops = view.ops.filter(
        named_like(view.ops, "^aten::view$"), outermost[view.ops["id"]] == pl.col("id")
    )
    places = ops.select("file", "call_line", "line", "function", "inputs").drop_nulls(
        ["inputs", "function"]
    )
    inputs = trace.inputs[["dims", "values"]][places["inputs"]]
    places = places.drop("inputs").hstack(inputs).unique(maintain_order=True)
    for file, call_line, line, function, dims, values in places.iter_rows():
        images, size = (dims or [[]])[0] or [], _numbers((values or ["", ""])[1:2])
        flat = len(images) == _IMAGES and len(size) == 2 and min(images) > 0  # noqa: PLR2004 - a row for each image
        if not flat or images[1] == 1 or prod(images[2:]) == 1:
            continue
        row, wide = images[0], prod(images[1:])
        if size[0] in (row, -1) and size[1] in (wide, -1):
            yield at_function(file, call_line or line, function)


def _numbers(values: list[str | None]) -> list[int]:
    """Return the sizes that a view was called with.

    >>> _numbers(["[5, -1]"])
    [5, -1]
    """
    parts = [
        part.strip()
        for value in values
        for part in (value or "").strip("[]").split(",")
    ]
    whole = all(part.lstrip("-").isdecimal() for part in parts)
    return [int(part) for part in parts] if whole else []


def _copied_dims(view: View) -> int:
    """Return the most dims of what the program copies to the GPU; 0 if it has images.

    What has fewer than 3 are labels and others that are no images either way.
    """
    kernels = view.kernels[["op", "name"]]
    ops = kernels["op"].filter(named_like(kernels, names.HTOD)).drop_nulls().unique()
    inputs = view.trace.ops["inputs"][ops].drop_nulls().unique()
    dims = view.trace.inputs["dims"][inputs].list.first().list.len().to_list()
    most = max((dim for dim in dims if dim), default=0)
    return most if most >= _IMAGES - 1 and _IMAGES not in dims else 0


def _functional(view: View, convolutions: pl.Series) -> str:
    """Return the function that calls convolutions outside of modules of their own."""
    ops = view.trace.ops[["file", "line", "function", "module", "phase"]][convolutions]
    module = text("module").str.extract(r"([^/]+)$")
    called = ops.filter(
        pl.col("phase") == "forward",
        module.is_not_null() & ~module.str.contains("Conv"),
    ).drop_nulls("function")
    if not called.height:
        return ""
    return at_function(*called.row(0)[:3])
