"""Remedies of slow convolutions, by what about them is slow."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ._convolutions import SEARCH, may_search

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.linter import Row, View

_DETERMINISTIC = (
    "try torch.backends.cudnn.deterministic = False: most of cuDNN's algorithms"
    " for gradients of convolutions are excluded; results vary with them"
)
_MEASURED = f"try {SEARCH}, with which cuDNN measures its algorithms for {{of}}"
NARROW = (
    "run the convolutions in bfloat16, under torch.autocast, if a run with it"
    " converges as well; check before that torch.backends.cudnn.allow_tf32 is True, as"
    " it is unless the program sets it"
)
"""Remedy of convolutions in float32 that use no tensor cores."""


class _Shape(NamedTuple):
    """Shape of a convolution, as far as its algorithm depends on it."""

    window: Sequence[int]
    each: int
    """Channels of the input that a channel of the result reads."""
    groups: int
    dilated: bool


def search(view: View, row: Row) -> str:
    """Return what lets cuDNN take another algorithm; empty if nothing is known to.

    ``row`` has ``name``, ``dims`` and ``values`` of a convolution, as far as known.
    """
    rank = view.trace.rank
    shape = _shape_of(row)
    # torch's own kernels, of which there is one for each shape.
    if shape and shape.groups > 1 and shape.each == 1:
        return ""
    if rank and rank.cudnn_deterministic:
        return _DETERMINISTIC
    # Of a window of 1 by 1 all algorithms are a matmul.
    if not may_search(view) or (shape and prod(shape.window) == 1):
        return ""
    if shape and shape.groups > 1:
        return _MEASURED.format(of=f"these convolutions of {shape.groups} groups")
    if shape and shape.dilated:
        return _MEASURED.format(of="these dilated convolutions")
    return _MEASURED.format(of="these shapes")


def _shape_of(row: Row) -> _Shape | None:
    """Return the shape of a convolution, if its inputs were recorded."""
    back = row["name"].partition(".")[0].endswith("_backward")
    dims, values = row.get("dims") or [], row.get("values") or []
    if len(dims) <= 1 + back or not dims[1 + back]:
        return None
    image, weight = dims[back], dims[1 + back]
    if not image or len(image) != len(weight):
        return None
    # The gradient has the sizes of the bias before the lists, and no output padding.
    dilation = values[5 + back : 6 + back]
    transposed = values[6 + back : 7 + back] == ["True"]
    channels = weight[0] if transposed else image[1]
    groups = 1 if transposed else channels // max(weight[1], 1)
    dilated = any(char in "23456789" for char in "".join(dilation))
    return _Shape(weight[2:], weight[1], groups, dilated)
