"""Remedies of losses of GPU time that no other rule names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ._convolutions import SEARCH, may_search

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.linter import Row, View

_LOOK = "look at these ops with traceq roofline: at their shapes, strides and dtypes"
_COMPILE = ", and at a torch.compile of the function"
_MADE = re.compile(r"mm$|matmul|linear|conv|attention|^Torch-Compiled")
_CONVOLUTION = re.compile(r"conv")
_JOINED = re.compile(r"^aten::(cat|stack)$")
_MOST = 2
_DTYPE, _ALGORITHM, _LAYOUT = (
    "wider dtype than needed",
    "slow algorithm",
    "layout changes",
)


def advice(view: View, rows: Sequence[Row]) -> str:
    """Return what to do about the largest losses, the largest first."""
    remedies = dict.fromkeys(filter(None, (_remedy(view, row) for row in rows)))
    if remedies:
        return "; ".join([*remedies][:_MOST])
    # A compiler calls the same kernels of matmuls and convolutions.
    fused = not view.compiled and not _MADE.search(rows[0]["name"] or "")
    return _LOOK + (_COMPILE if fused else "")


def _remedy(view: View, row: Row) -> str:
    """Return the remedy of one loss; empty if none is known."""
    name, part = row["name"] or "", row["part"]
    if _JOINED.match(name) and part == _LAYOUT:
        # Autograd refuses tensors that are written to after they were used.
        if view.trains:
            return ""
        return (
            "make the tensor that is joined once, in its full size, and write the parts"
            " into it, where it is joined again and again"
        )
    if not _CONVOLUTION.search(name):
        return ""
    if part == _DTYPE:
        return (
            "run the convolutions in bfloat16, under torch.autocast, if a run with it"
            " converges as well"
        )
    return _algorithm(view) if part == _ALGORITHM else ""


def _algorithm(view: View) -> str:
    """Return what lets cuDNN choose another algorithm, if anything does."""
    rank = view.trace.rank
    if rank and rank.cudnn_deterministic:
        return (
            "try torch.backends.cudnn.deterministic = False: most of cuDNN's algorithms"
            " for gradients of convolutions are excluded; results vary with them"
        )
    if may_search(view):
        return (
            f"try {SEARCH}, with which cuDNN measures its algorithms for these shapes"
        )
    return ""
