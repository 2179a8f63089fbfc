"""Head dims that fused attention takes, and what to do about others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.linter import HALF, Gpu, dtype_name

if TYPE_CHECKING:
    from traceq.linter import Row

# From torch's sdp_utils.cpp (2.13): mem-efficient kernels load 128 bits at once, in
# float32 since compute capability 8. FlashAttention takes 16 bits without a mask, up to
# this head dim, which torch pads for it.
_OF_HALF, _OF_FLOAT32 = 8, 4
_WIDEST, _FIRST = 256, 8
FUSED = ("c10::Half", "c10::BFloat16", "float")
"""Dtypes that fused kernels take."""


def multiple(row: Row, gpu: Gpu, *, masked: bool) -> int | None:
    """Return what the head dims have to be multiples of, unless they fit as they are.

    Of AMD's kernels that is not known.
    """
    if gpu.amd:
        return None
    widths, half = {row["query"][-1], row["value"][-1]}, row["type"] in HALF
    # The capability of an unknown GPU is 0: most are recent.
    recent = not 0 < gpu.capability[0] < _FIRST
    if half and recent and not masked and len(widths) == 1 and max(widths) <= _WIDEST:
        return None
    needed = _OF_HALF if half else _OF_FLOAT32
    if not (half or recent) or not any(width % needed for width in widths):
        return None
    return needed


def _only(row: Row, needed: int) -> str:
    kind = dtype_name(row["type"] or "float")
    return f"take {kind} only with a head dim that is a multiple of {needed}"


def padded(row: Row, needed: int, call: str) -> str:
    """Return the advice to pad the heads for a call, which is then the same."""
    width = row["query"][-1]
    missing = -width % needed
    return (
        f"{call}, but with a head dim padded with zeros from {width} to"
        f" {width + missing}, as F.pad(query, (0, {missing})), and scale={width} **"
        f" -0.5, and slice the result: SDPA's fused kernels {_only(row, needed)}"
    )


def changed(row: Row, needed: int, call: str) -> str:
    """Return the advice to choose a head dim that fits before a module's call."""
    width = row["query"][-1]
    # These fit in all dtypes.
    below = max(_OF_HALF, width // _OF_HALF * _OF_HALF)
    return (
        f"if the model may change, make embed_dim / num_heads {below} or"
        f" {below + _OF_HALF} instead of {width}, then {call}: the kernels"
        f" {_only(row, needed)}, and alone need_weights=False saves little"
    )
