"""Bytes that a chain of memory-bound ops moves once it is fused.

A fused chain reads what comes from outside once, and writes what others use. A trace
does not say which tensor an input is, but its size and dtype: an input is what the
chain has made or read before, if it has such a tensor, else what a matmul before it
made, else one from longer ago.

The backward of a fused chain computes the values between the ops again: it reads what
the forward read and the gradients of what it wrote, and writes those of what it read.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from traceq.analysis.base.assumptions import FUSED_TRANSPOSED, FUSED_TWICE
from traceq.analysis.patterns.attention import FUSED_ARGUMENTS
from traceq.analysis.patterns.matmul import MATMULS
from traceq.analysis.time.flops import convolution_shape
from traceq.model.dtypes import ALL_SIZES

if TYPE_CHECKING:
    from collections.abc import Sequence


def _named(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


_COMPARES = _named(
    "eq ge gt isfinite isinf isnan le logical_and logical_not logical_or lt ne"
)
# They have the mean and the variance of all before they write any: they read twice.
_TWICE = _named(
    "cudnn_batch_norm miopen_batch_norm native_batch_norm native_group_norm"
)
# What is normalized by rows is a sum that later layers add to.
_NORMS = _TWICE | _named("native_layer_norm _fused_rms_norm mean var_mean")
# They write a value for each row, or one for all.
_REDUCTIONS = _named(
    """
    all amax amin any logsumexp max mean min mse_loss norm linalg_vector_norm prod std
    std_mean sum smooth_l1_loss var var_mean nll_loss_forward nll_loss2d_forward
    binary_cross_entropy binary_cross_entropy_with_logits
    """
)
_BY_ROWS = _NORMS | _REDUCTIONS | _named("_softmax _log_softmax")
_ADDS = _named("add add_")
_PICKS = _named("embedding index_select")
# Their gradient does not depend on their input.
_LINEAR = _ADDS | _named("copy_ cat neg sub rsub")
# That of these depends on which elements they let pass: a byte of each is enough.
_MASKED = _named("relu relu_ leaky_relu leaky_relu_ threshold threshold_ hardtanh")
_COPY, _CAT, _CONVOLUTION = "aten::copy_", "aten::cat", "aten::convolution"
# A view, as a half of a tensor, is no smaller than this part of it.
_SMALLEST_VIEW = 8
# Smaller tensors than this part of the largest, as weights, need no gradient of their
# size.
_LARGE = 0.05

Key = tuple[int, int]
"""Number of elements, and bytes of each."""
Order = tuple[int, int]
"""Number of dimensions, and the one along which neighbours are stored."""


class Unit(NamedTuple):
    """An op with GPU work, as far as its bytes are concerned."""

    name: str
    dims: list[list[int] | None] | None
    types: list[str] | None
    strides: list[list[int]] | None
    values: list[str] | None
    place: int
    """Number of the function and module that it is in."""
    fusible: bool


class Fused(NamedTuple):
    """Bytes that a fused chain reads and writes."""

    forward: float
    backward: float
    reduces: bool
    """True if it has a norm, a softmax or a sum."""


def reads(unit: Unit) -> list[Key]:
    """Return the tensors that an op reads, without those of one element."""
    keys = []
    for at, (kind, dims) in enumerate(zip(unit.types or (), unit.dims or ())):  # noqa: B905 - some have more types
        size = ALL_SIZES.get(kind)
        if size is None or not dims or prod(dims) <= 1:
            continue
        stored = prod(dims)
        strides = unit.strides[at] if unit.strides and at < len(unit.strides) else ()
        if len(strides) == len(dims) and 0 in strides:
            stored = prod(n for n, by in zip(dims, strides, strict=True) if by)
        keys.append((stored, size))
    return keys[1:2] if unit.name == _COPY else keys


def orders(unit: Unit) -> dict[int, set[Order]]:
    """Return by number of elements the orders in which an op's tensors are stored."""
    result: dict[int, set[Order]] = {}
    for dims, strides in zip(unit.dims or (), unit.strides or ()):  # noqa: B905 - some have more dims
        if not dims or len(dims) != len(strides):
            continue
        along = [
            at
            for at, (n, by) in enumerate(zip(dims, strides, strict=True))
            if n > 1 == by
        ]
        if along:
            result.setdefault(prod(dims), set()).add((len(dims), along[-1]))
    return result


def writes(unit: Unit) -> Key | None:
    """Return the tensor that an op makes; none if that is not known, or small."""
    try:
        return _written(unit)
    except (IndexError, TypeError, ValueError):
        # Inputs that are missing, or not those of the op's schema.
        return None


def _written(unit: Unit) -> Key | None:
    dims = unit.dims or []
    shapes = [
        (shape, ALL_SIZES[kind])
        for shape, kind in zip(dims, unit.types or ())  # noqa: B905 - as above
        if shape and kind in ALL_SIZES
    ]
    first, size = shapes[0]
    if unit.name in MATMULS:
        left, right = (dims[at] or [] for at in MATMULS[unit.name])
        return prod(left[:-1]) * right[-1], size
    if unit.name == _CONVOLUTION:
        transposed = (unit.values or [])[6] == "True"
        shape = first if transposed else convolution_shape(dims, unit.values)
        return prod(shape), size
    if unit.name in _PICKS:
        return prod(shapes[1][0]) * first[-1], size
    if unit.name in _REDUCTIONS:
        return None
    if unit.name in FUSED_ARGUMENTS or unit.name.endswith("_"):
        return prod(first), size
    most = max(prod(shape) for shape, _ in shapes)
    return most, 1 if unit.name in _COMPARES else max(size for _, size in shapes)


def fused_bytes(
    before: Sequence[Unit], chain: Sequence[Unit], after: Sequence[Unit]
) -> Fused:
    """Return the bytes that a fused chain moves.

    ``before`` and ``after`` are the ops around it that are not fused; ``chain`` may
    have such ops, too, which use nothing that it makes.
    """
    chip = _Chip(before)
    for unit in chain:
        chip.run(unit)
    return chip.moved(after)


class _Chip:
    """Tensors that a fused kernel has in its registers, in the course of a chain."""

    def __init__(self, before: Sequence[Unit]) -> None:
        made = (writes(unit) for unit in before)
        self.pending = Counter(key for key in made if key)
        self.has: Counter[Key] = Counter()
        self.made: Counter[Key] = Counter()
        self.place: dict[Key, int] = {}
        self.read: list[Key] = []
        self.twice: list[Key] = []
        self.old_adds: list[Key] = []
        self.kept: list[Key] = []
        self.joined: list[Key] = []
        self.masks: list[Key] = []
        self.linear = True
        self.reduces = False
        self.orders: dict[int, set[Order]] = {}
        self.last: Key | None = None

    def run(self, unit: Unit) -> None:
        """Read what an op needs, and hold what it makes."""
        written = writes(unit)
        if not unit.fusible:
            if written:
                self.pending[written] += 1
            return
        self.reduces |= unit.name in _BY_ROWS
        inputs = Counter(reads(unit))
        for key, count in inputs.items():
            self._need(unit, key, count)
        if unit.name in _TWICE and inputs:
            self.twice.append(max(inputs))
        if unit.name in _NORMS and self.old_adds:
            self.kept.append(self.old_adds.pop())
        self._differentiate(unit, written)
        for count, some in orders(unit).items():
            self.orders.setdefault(count, set()).update(some)
        if written and unit.name == _CAT:
            self.joined.append(written)
        if written:
            self.has[written] += 1
            self.made[written] += 1
            self.last = written

    def _differentiate(self, unit: Unit, written: Key | None) -> None:
        """Keep what the gradient of an op depends on."""
        if unit.name in _MASKED and written:
            self.masks.append((written[0], 1))
        elif unit.name not in _LINEAR:
            self.linear = False

    def _need(self, unit: Unit, key: Key, count: int) -> None:
        """Take this many tensors of a size from the chip, or read them."""
        if not self.has[key] and not self.pending[key] and self._views(key):
            return
        for number in range(count):
            if self.has[key] and not number:
                continue
            if self.pending[key]:
                self.pending[key] -= 1
            elif self.has[key] > 1 and self.place.get(key) == unit.place:
                # A value of the same function that is used again.
                return
            elif self.has[key] and unit.name in _ADDS:
                self.old_adds.append(key)
            elif self.has[key] > 1:
                return
            self._realize(key)
            self.read.append(key)
            self.has[key] += 1
            self.place.setdefault(key, unit.place)

    def _realize(self, key: Key) -> None:
        """Write what was joined, if a slice of it is read: it is not computed twice."""
        whole = [row for row in self.joined if row[1] == key[1] and row[0] > key[0]]
        if whole and not self.pending[key]:
            self.kept += whole
            self.joined = [row for row in self.joined if row not in whole]

    def _views(self, key: Key) -> bool:
        """Return whether a tensor may be a part of one that is there."""
        return any(
            size == key[1]
            and count % key[0] == 0
            and 1 < count // key[0] <= _SMALLEST_VIEW
            for (count, size), held in self.has.items()
            if held
        )

    def moved(self, after: Sequence[Unit]) -> Fused:
        """Return the bytes that are read and written, given who uses what is made."""
        used: Counter[Key] = Counter()
        for unit in after:
            used |= Counter(reads(unit))
        out = [
            key
            for key, count in used.items()
            for _ in range(min(count, self.made[key]))
        ]
        if not out and self.last:
            out = [self.last]
        out += self.kept
        read, written, again = map(self._total, (self.read, out, self.twice))
        large = _LARGE * max(map(_bytes, (*self.read, *out)), default=0)
        added = self._total(self.old_adds) + self._total(self.kept)
        active = self._total([row for row in self.read if _bytes(row) >= large]) - added
        active = max(0.0, active)
        masks = self._total(self.masks) if self.linear else 0
        backward = written + active + (masks if self.linear else active)
        if self.twice:
            backward += again + written
        # What is added from longer ago is read again for its gradient, and that one
        # is written; twice, where the gradient of a mean is needed before.
        backward += (3 if self.twice else 2) * self._total(self.old_adds)
        times = FUSED_TWICE if self.twice else 1.0
        forward = times * (read + again + written + masks)
        return Fused(forward, times * backward, self.reduces)

    def _total(self, keys: Sequence[Key]) -> float:
        """Return the bytes of tensors, more where a kernel reads or writes with gaps.

        That is where a chain has tensors of one size in two orders: in rows, and in
        channels_last.
        """
        return sum(
            _bytes(key) * (FUSED_TRANSPOSED if self._in_two_orders(key) else 1.0)
            for key in keys
        )

    def _in_two_orders(self, key: Key) -> bool:
        some = self.orders.get(key[0], ())
        return len({dims for dims, _ in some}) < len(some)


def _bytes(key: Key) -> int:
    return key[0] * key[1]
