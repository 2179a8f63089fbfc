"""Remedies of ops that are slow for their shapes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.linter import Row

# Each pixel of such a gradient is a sum of many values, which are added atomically.
_INTERPOLATED = re.compile(
    r"^aten::_?upsample_(?:linear|bilinear|bicubic|trilinear)\w*_backward$"
)
# Ops that no compiler generates and whose values decide how much they read, with the
# argument that is their dimension.
_DECIDED_BY_VALUES = {
    "argsort": 1,
    "median": 1,
    "mode": 1,
    "nanmedian": 1,
    "sort": 1,
    "topk": 2,
}
_LAST = "-1"
_NO_EXAMPLE = 2  # more than the page has


class Remedy(NamedTuple):
    """The remedy of an op."""

    helps: bool
    """True if it is known to make any such op faster."""
    advice: str
    """Advice other than the rule's own; empty if there is none."""
    example: int = _NO_EXAMPLE
    """Number of its example on the rule's page."""


def remedy(row: Row) -> Remedy:
    """Return what may be done about an op; ``row`` has its name and its inputs."""
    if _INTERPOLATED.match(row["name"]):
        return Remedy(
            helps=True,
            advice="interpolate by two matmuls in float32: rows.T @ x @ columns, with"
            " the weights that F.interpolate makes of an identity matrix",
            example=1,
        )
    if _is_as_fast_as_it_gets(row):
        return Remedy(
            helps=False,
            advice="nothing is known to be faster for a contiguous tensor: call it less"
            " often, or on fewer values",
        )
    return Remedy(helps=True, advice="")


def _is_as_fast_as_it_gets(row: Row) -> bool:
    """Return whether an op runs along the last dimension of a contiguous tensor."""
    place = _DECIDED_BY_VALUES.get(row["name"].rpartition("::")[2])
    dims, strides = row["dims"], row["strides"]
    if place is None or not dims or not strides:
        return False
    values: Sequence[str] = row["values"] or []
    if values[place : place + 1] in (["True"], ["False"]):
        place += 1  # sort.stable
    along = next(iter(values[place : place + 1]), "") or _LAST
    return along in (_LAST, str(len(dims[0]) - 1)) and _contiguous(dims[0], strides[0])


def _contiguous(dims: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether a tensor is stored row by row, without gaps."""
    expected = 1
    for size, stride in zip(reversed(dims), reversed(strides), strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True
