"""Operators on tensors in host memory, and the inputs they have."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from traceq.analysis.base import ownership
from traceq.analysis.time.op_calls import on_host
from traceq.common import intervals
from traceq.common.expressions import elements
from traceq.linter import View, fill_false, named_like, nth, tensor, text
from traceq.model import dtypes

if TYPE_CHECKING:
    from collections.abc import Iterator

# On fewer elements, the size is not why an op takes long. Heuristic threshold.
_FEW = 1000
# From this size on the allocator of glibc takes fresh pages from the system, which the
# first write has to fill: the same op takes many times as long then.
_FRESH_BYTES = 128 << 10
# Operators of others may wait for a network, or for other processes.
_COMPUTES = "^(aten|torchvision|torchaudio)::"
# These touch no element; in a subclass of Tensor they take long nevertheless.
VIEWS = (
    r"^aten::(_unsafe_view|_reshape_alias|alias|as_strided|chunk|detach_?|diagonal"
    r"|empty\w*|expand\w*|flatten|narrow|new_empty\w*|permute|reshape|resize\w*|select"
    r"|set_|slice|split\w*|squeeze|swapaxes|t|transpose|unbind|unflatten\w*|unsqueeze"
    r"|view\w*)$"
)
"""Operators that touch no element."""


class InputTensor(NamedTuple):
    """A tensor that an operator is given; nothing where that is not known."""

    text: str = ""
    """Its dtype and its shape."""
    size: int = 0
    """Its bytes."""
    dtype: str = ""

    @classmethod
    def of(cls, view: View, inputs: int | None, at: int) -> InputTensor:
        if inputs is None:
            return cls()
        dims, types = view.trace.inputs.select("dims", "types").row(inputs)
        if (
            not dims
            or len(dims) <= at
            or not dims[at]
            or types[at] not in dtypes.ALL_SIZES
        ):
            return cls()
        size = prod(dims[at]) * dtypes.ALL_SIZES[types[at]]
        return cls(tensor(types[at], dims[at]), size, types[at])


def on_cpu(view: View, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that compute on tensors in host memory.

    ``called`` is the outermost operator around each.
    """
    ops = view.trace.ops
    # An operator on a subclass of Tensor runs Python.
    wrapped = ops["parent"].filter(ownership.called_by_its_like(view.trace))
    inputs = view.trace.inputs[calls["inputs"]]
    is_tensor = nth("types", 0).is_in(list(dtypes.ALL_SIZES)) & (
        nth("dims", 0).list.len() > 0
    )
    few = inputs.select(fill_false(is_tensor & (elements() < _FEW))).to_series()
    chosen = (
        on_host(view.trace, calls["op"])
        & named_like(calls, _COMPUTES)
        & ~named_like(calls, VIEWS)
        & ~calls["op"].is_in(wrapped.implode())
        & calls["phase"].ne_missing("optimizer")
        & ~few
    )
    calls = calls.filter(chosen)
    called = ops["name"][view.outermost_ops[calls["op"]]]
    return calls.with_columns(text("name"), called=called.cast(pl.String))


def on_fresh_pages(view: View, calls: pl.DataFrame) -> pl.Series:
    """Return the ops of calls that write or read large tensors in host memory."""
    calls = on_cpu(view, calls)
    size = nth("types", 0).replace_strict(dtypes.ALL_SIZES, default=0)
    large = fill_false(elements() * size >= _FRESH_BYTES)
    return calls["op"].filter(
        view.trace.inputs[calls["inputs"]].select(large).to_series()
    )


def with_chains(view: View, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls with ``chain``: one number if nothing calls the GPU between."""
    asked = view.trace.runtime["ts"].sort()
    return calls.with_columns(chain=intervals.count_until(asked, calls["ts"]))


def by_chain(rows: pl.DataFrame) -> Iterator[list[dict[str, Any]]]:
    """Yield the groups of calls that have chains in common, the first call first.

    ``chains`` are the chains that the calls of a group are in, ``first`` is the time
    of the first one.
    """
    joined: list[tuple[set[int], list[dict[str, Any]]]] = []
    for row in rows.iter_rows(named=True):
        chains, members = set(row["chains"]), [row]
        apart = []
        for others in joined:
            if chains.isdisjoint(others[0]):
                apart.append(others)
            else:
                chains, members = chains | others[0], [*others[1], *members]
        joined = [*apart, (chains, members)]
    for _, members in joined:
        yield sorted(members, key=lambda row: int(row["first"]))
