"""Layouts of query, key and value that fused attention takes as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.linter import FLOAT32, named

if TYPE_CHECKING:
    from traceq.linter import Row, View

# From torch's list of mem-efficient kernels (2.13), which float32 has alone: those for
# larger head dims keep their sums in memory, the backward's too.
_WIDE = 128
_BATCHED = 3
_SORTS = ("aten::einsum",)
_FOUR = "[batch, heads, positions, head dim]"
_TURNED = (
    " with query, key and value as {four}: here the positions are next to each other in"
    " memory, and fused kernels take the elements of a head next to each other, so"
    " .transpose(-2, -1) where these come first, .contiguous(){and_four}"
)
_AND_FOUR = " and, of three dims, .unsqueeze(1)"
_THREE = " with query, key and value as {four}: of three dims fused kernels take none"
_MEASURE = (
    "time it first: in float32 fused kernels are not known to be fast for a head dim of"
    " {width}, above {wide}; under torch.autocast to bfloat16, if that is precise"
    " enough, they are. {call}"
)


def wide(row: Row) -> bool:
    """Return whether fused attention is not known to be faster for its head dims."""
    width = max(row["query"][-1], row["value"][-1])
    return (row["type"] or FLOAT32) == FLOAT32 and width > _WIDE


def timed_first(row: Row, call: str) -> str:
    """Return the advice to time a call for head dims as wide as these."""
    width = max(row["query"][-1], row["value"][-1])
    return _MEASURE.format(width=width, wide=_WIDE, call=call)


def layout(view: View, row: Row) -> str:
    """Return how query, key and value have to be laid out, if not as they are."""
    few_dims = len(row["scores"]) == _BATCHED
    if _positions_last(view, row):
        return _TURNED.format(four=_FOUR, and_four=_AND_FOUR if few_dims else "")
    return _THREE.format(four=_FOUR) if few_dims else ""


def _positions_last(view: View, row: Row) -> bool:
    """Return whether the elements of a head are apart in memory, by the matmuls.

    Of an einsum, which sorts its operands itself, nothing is known.
    """
    ops = view.trace.ops[["id", "name", "inputs"]][[row["first"], row["last"]]]
    ops = ops.filter(~named(ops, _SORTS))
    by_op = {
        one: (dims or [], strides or [])
        for one, dims, strides in view.with_inputs(ops)
        .select("id", "dims", "strides")
        .iter_rows()
    }
    positions, keys = row["scores"][-2:]
    makes, uses = (by_op.get(row[part], ([], [])) for part in ("first", "last"))
    steps = [_stride(makes, 0, -1), _stride(makes, 1, -2)]
    if uses[0] and (uses[0][0] or [])[-2:] == [positions, keys]:
        steps.append(_stride(uses, 1, -1))
    else:
        steps.append(_stride(uses, 0, -2))
    return any(step not in (None, 1) for step in steps)


def _stride(
    inputs: tuple[list[list[int]], list[list[int]]], matrix: int, dim: int
) -> int | None:
    """Return the stride of one dim of a matrix, if it is known."""
    strides = inputs[1][matrix] if len(inputs[1]) > matrix else None
    return strides[dim] if strides and len(strides) >= -dim else None
