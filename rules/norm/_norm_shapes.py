"""Ops in a row that make up a norm, recognised by their names and shapes.

A norm over one dim scales its input by the root of a mean, or divides it by the length
of each vector: by something of the input's shape with a 1 in place of that dim.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOTS = ("aten::rsqrt", "aten::sqrt")
LENGTHS = ("aten::linalg_vector_norm", "aten::norm")
MEANS = ("aten::mean", "aten::var")
_SCALES = ("aten::mul", "aten::div", "aten::mul_", "aten::div_")
# What comes before the root: ops on the input, ops on the mean.
_ON_INPUT = ("aten::to", "aten::pow", "aten::square", "aten::sub", *MEANS)
_ON_MEAN = ("aten::add", "aten::add_")
# Between a length and the division by it: its scale, and what keeps it from zero.
_ON_LENGTH = (
    *_SCALES,
    *_ON_MEAN,
    *("aten::clamp", "aten::clamp_", "aten::clamp_min", "aten::clamp_min_"),
    "aten::maximum",
)
# What comes after it is scaled: a cast, the weight and the bias.
_ON_RESULT = ("aten::to", "aten::type_as")
_ON_WEIGHT = ("aten::mul", "aten::mul_", "aten::add", "aten::add_")
_EUCLIDEAN = 2.0


class Op(NamedTuple):
    """An op that launches work: the shapes of its first two inputs."""

    name: str
    first: list[int] | None
    second: list[int] | None
    moves: bool
    """True for a memcpy, which casts nothing."""
    second_value: str | None
    """The second input, where it is a number."""


class Norm(NamedTuple):
    """The place of a norm in a row of ops, and what it is over."""

    first: int
    last: int
    dims: list[int]
    axis: int


def norm_around(ops: Sequence[Op], at: int) -> Norm | None:
    """Return the norm to which the root or length at a place belongs, if any.

    It is the longest row of ops that belong to a norm, without a gap. A vector that is
    divided by its length and not scaled is normalised, and no norm of a layer.
    """
    if ops[at].name in LENGTHS and not _is_euclidean(ops[at]):
        return None
    scaled = _scaled(ops, at)
    if scaled is None:
        return None
    scale, dims, axis = scaled
    first, last = at, scale
    while first and _is_before(ops[first - 1], ops[first], ops[at], dims):
        first -= 1
    by_length = ops[at].name in LENGTHS
    while last + 1 < len(ops) and _is_behind(
        ops[last + 1], dims, axis, by_length=by_length
    ):
        last += 1
    norm = ops[first : last + 1]
    if by_length:
        whole = any(_has_weight(op, dims, axis) for op in ops[scale + 1 : last + 1])
    else:
        whole = any(op.name in MEANS for op in norm)
    return Norm(first, last, dims, axis) if whole else None


def _is_euclidean(op: Op) -> bool:
    try:
        return float(op.second_value or _EUCLIDEAN) == _EUCLIDEAN
    except ValueError:
        return False


def _scaled(ops: Sequence[Op], at: int) -> tuple[int, list[int], int] | None:
    """Return which op scales the input by a root or length, its shape and the dim."""
    root = ops[at]
    by_length = root.name in LENGTHS
    for number, op in enumerate(ops[at + 1 :], at + 1):
        if op.name in _SCALES:
            for whole, part in ((op.first, op.second), (op.second, op.first)):
                axis = _axis(whole, part)
                of_root = whole == root.first if by_length else part == root.first
                if whole and axis is not None and of_root:
                    return number, whole, axis
            # F.normalize expands the length, which the op before knows as it was.
            axis = _axis(root.first, ops[number - 1].first)
            expanded = op.first == op.second == root.first
            if by_length and expanded and root.first and axis is not None:
                return number, root.first, axis
        on_length = op.name in _ON_LENGTH and _axis(root.first, op.first) is not None
        if not by_length or not on_length or op.moves:
            return None
    return None


def _axis(whole: list[int] | None, part: list[int] | None) -> int | None:
    """Return the one dim in which a part has 1 and the whole more; else they agree.

    >>> _axis([2, 64, 8, 8], [2, 1, 8, 8]), _axis([2, 64], [64]), _axis([2], [2])
    (1, None, None)
    """
    if not whole or not part or len(whole) != len(part):
        return None
    differing = [at for at, size in enumerate(whole) if size != part[at]]
    if len(differing) != 1 or part[differing[0]] != 1:
        return None
    return differing[0]


def _is_before(op: Op, after: Op, root: Op, dims: list[int]) -> bool:
    """Return whether an op before a root is one that a norm is made of."""
    if op.moves:
        return False
    if op.name in _ON_INPUT and op.first == dims:
        return True
    if root.name in LENGTHS:
        return False
    squares = op.name == "aten::mul" and op.first == op.second == dims
    return (op.name in _ON_MEAN and op.first == root.first) or (
        squares and after.name == "aten::mean"
    )


def _is_behind(op: Op, dims: list[int], axis: int, *, by_length: bool) -> bool:
    """Return whether an op after the scaling is one that a norm is made of."""
    if op.moves:
        return False
    if op.name in _ON_RESULT:
        return op.first == dims or _is_weight(op.first, dims, axis)
    # The root of the number of elements.
    by_number = op.name in _SCALES and op.first == dims and op.second == []
    return _has_weight(op, dims, axis) or (by_length and by_number)


def _has_weight(op: Op, dims: list[int], axis: int) -> bool:
    return op.name in _ON_WEIGHT and (
        _is_weight(op.first, dims, axis) or _is_weight(op.second, dims, axis)
    )


def _is_weight(shape: list[int] | None, dims: list[int], axis: int) -> bool:
    """Return whether a tensor has one element for each position along the dim.

    >>> _is_weight([1, 64, 1, 1], [2, 64, 8, 8], 1), _is_weight([8], [2, 64, 8, 8], 1)
    (True, False)
    """
    if not shape or len(shape) > len(dims):
        return False
    aligned = [1] * (len(dims) - len(shape)) + shape
    return aligned[axis] == prod(aligned) == dims[axis]
