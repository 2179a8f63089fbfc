"""Dimension that an index picks from, as its gradient shows it."""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from traceq.linter import named, nth

if TYPE_CHECKING:
    from traceq.linter import View

# Indices are wrapped by the size of their dimension, and multiplied by its stride.
_WRAPS, _STRIDES = "aten::remainder", "aten::mul"
# What a mask is made indices by.
_TRUE = "aten::nonzero"
_NUMBER = nth("types", 1) == "Scalar"


class Indexed(NamedTuple):
    """Indices of an index_put_, as far as the ops inside of it show them."""

    number: int = 0
    """Number of dimensions that are indexed at once; 0 where it is not known."""
    along: int | None = None
    """The dimension, if it is one and known."""
    dims: int = 1
    """Dimensions of the index."""
    mask: tuple[int, ...] = ()
    """Shape of the mask whose true places the indices are, if they are of one."""
    first: int = 0
    """The first dimension that the mask is over."""
    elements: bool = False
    """True if the mask is over all dimensions."""

    @property
    def unknown(self) -> bool:
        """True if nothing is known of the indices."""
        return not self.number

    @property
    def call(self) -> str:
        """The call that picks the same with a faster gradient."""
        if self.mask:
            return self._masked
        if self.number > 1:
            return (
                f"index_select() and one index, of x with the {self.number} dimensions"
                " in one that are indexed at once"
            )
        if self.along is None:
            return "x.index_select(dim, index), dim being the one that is indexed"
        if self.dims > 1:
            return (
                f"x.index_select({self.along}, index.flatten())"
                f".unflatten({self.along}, index.shape)"
            )
        return f"x.index_select({self.along}, index)"

    @property
    def _masked(self) -> str:
        first, several = self.first, len(self.mask) > 1
        if self.elements:
            return "x.masked_select(mask)"
        flat = f".flatten({first}, {first + len(self.mask) - 1})" if several else ""
        of_mask = "mask.flatten()" if several else "mask"
        return f"x{flat}.index_select({first}, {of_mask}.nonzero().squeeze(1))"

    @classmethod
    def of(cls, view: View, op: int) -> Indexed:
        """Return what the ops inside of an ``_index_put_impl_`` show."""
        ops = view.trace.ops
        inside = ops[["name", "inputs"]].filter(ops["parent"] == op)
        inputs = view.trace.inputs[["dims", "types", "values"]]
        table = inputs["dims"][ops["inputs"][op]][0].to_list()
        masks = inputs["dims"][inside["inputs"].filter(named(inside, [_TRUE]))]
        if len(masks) == 1:
            return cls.of_mask(table, (masks[0].to_list() or [[]])[0] or [])
        wraps, strides = (
            inputs[inside["inputs"].filter(named(inside, [name]))]
            .filter(_NUMBER)
            .select(
                dims=nth("dims", 0),
                number=nth("values", 1).cast(pl.Int64, strict=False),
            )
            for name in (_WRAPS, _STRIDES)
        )
        if wraps.height != 1:
            return cls(wraps.height)
        (shape, size), stride = wraps.row(0), strides["number"].to_list()
        # Those of a contiguous tensor, the last dimension first.
        steps = [*accumulate([1, *reversed(table[1:])], mul)][::-1]
        fits = [
            at
            for at, (wide, step) in enumerate(zip(table, steps, strict=True))
            if wide == size and [step] == stride
        ]
        return cls(1, fits[0] if len(fits) == 1 else None, len(shape or [0]))

    @classmethod
    def of_mask(cls, table: list[int], mask: list[int]) -> Indexed:
        """Return the index that a mask of this shape is, over the first dims it fits.

        >>> Indexed.of_mask([8, 16, 4], [16]).call
        'x.index_select(1, mask.nonzero().squeeze(1))'
        """
        width = len(mask)
        fits = [
            at
            for at in range(len(table) - width + 1)
            if width and table[at : at + width] == mask
        ]
        if not fits:
            return cls()
        first = fits[0]
        return cls(1, first, width, (*mask,), first, width == len(table))
