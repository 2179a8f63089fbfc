"""Remedies of ops that are slow for their shapes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from traceq.linter import FLOAT32

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.linter import Row, View

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
_MATMUL = re.compile(r"^aten::(\w*mm|matmul|linear|mv|dot)(\.|$)")
# Results that several inputs are added to, or picked by index.
_SCATTERED = re.compile(r"^aten::(_?index|scatter|_embedding_bag|put_|bincount)")
# What a compiler generates no code for, beside matmuls and transforms.
_NOT_GENERATED = re.compile(
    r"sort|topk|median|mode|unique|nonzero|masked_select|pool|multinomial|kthvalue"
)
# They are there to change the strides.
_COPIES = re.compile(r"^aten::(copy_|clone|contiguous)(\.|$)")
_DOUBLE = "double"
# What kernels of matmuls work on at once.
_TILE = 64
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


def remedy(view: View, row: Row) -> Remedy:
    """Return what may be done about an op; ``row`` has its name and its inputs."""
    name = row["name"]
    if _INTERPOLATED.match(name):
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
    return _by_cause(view, row)


def _by_cause(view: View, row: Row) -> Remedy:
    """Return what to try for an op that is slow by its dtype, strides or indices."""
    name, types = row["name"], row["types"] or []
    dims, strides = row["dims"] or [], row["strides"] or []
    tries = []
    if _DOUBLE in types:
        tries.append("float32, whose arithmetic is many times as fast as float64's")
    jumps = [
        at
        for at, (sizes, steps) in enumerate(zip(dims, strides, strict=False))
        # What is broadcast has a stride of 0, and is small.
        if sizes and steps and 0 not in steps and not _contiguous(sizes, steps)
    ]
    if jumps and not _COPIES.match(name):
        tries.append(
            f"a contiguous input {jumps[0] + 1}, whose strides are"
            f" {list(strides[jumps[0]])}"
        )
    if _place_of_dimension(name) is not None and not jumps:
        tries.append("the dimension that it runs along as the last, in memory too")
    elif _MATMUL.match(name):
        return _of_matmul(dims, tries)
    elif _SCATTERED.match(name):
        tries.append(
            "indices without repeats, where they repeat: what goes to one place is"
            " added one after the other"
        )
    elif not strides or not types:
        return Remedy(helps=True, advice="")
    elif not view.compiled and not _NOT_GENERATED.search(name):
        tries.append("torch.compile around the function")
    if not tries:
        return Remedy(
            helps=False,
            advice="nothing is known to be faster for these shapes: call it less often,"
            " or on fewer values",
        )
    if types and FLOAT32 not in types and _DOUBLE not in types:
        tries.append("float32 for this op alone")
    return Remedy(helps=True, advice="try " + ", or ".join(tries))


def _of_matmul(dims: Sequence[Sequence[int]], tries: list[str]) -> Remedy:
    """Return what to try for a matmul, beside what its dtype and strides suggest."""
    odd = {size for sizes in dims for size in (sizes or ())[-2:] if size % _TILE}
    if odd - {1}:
        tries = [*tries, f"sizes that are multiples of {_TILE}"]
    alone = (
        "time it alone first, with torch.utils.benchmark on these shapes: where it is"
        " fast alone, other work runs at the same time"
    )
    then = f"; else try {', or '.join(tries)}" if tries else ""
    return Remedy(helps=bool(tries), advice=alone + then)


def _place_of_dimension(name: str) -> int | None:
    """Return which argument is the dimension of an op that its values decide."""
    return _DECIDED_BY_VALUES.get(name.rpartition("::")[2])


def _is_as_fast_as_it_gets(row: Row) -> bool:
    """Return whether an op runs along the last dimension of a contiguous tensor."""
    place = _place_of_dimension(row["name"])
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
