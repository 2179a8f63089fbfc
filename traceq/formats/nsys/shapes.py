"""Shapes of ops' inputs, from the ``sizes`` in torch's NVTX texts.

Torch writes the tensors of a list one after the other, and nothing for a list of
numbers. Kineto writes one entry for each input, and rules count by these: where an op
is known, its entries are put back in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import orjson
import polars as pl

from traceq.formats.inputs import decode_inputs

if TYPE_CHECKING:
    from collections.abc import Mapping


class _TensorList(NamedTuple):
    """Place of a list of tensors among the inputs of an op."""

    before: int
    after: int


_TENSOR_LISTS: Mapping[str, _TensorList] = {
    "aten::cat": _TensorList(0, 1),
    "aten::concat": _TensorList(0, 1),
    "aten::stack": _TensorList(0, 1),
    "aten::index": _TensorList(1, 0),
    "aten::index_put_": _TensorList(1, 2),
    "aten::_index_put_impl_": _TensorList(1, 3),
    "aten::einsum": _TensorList(1, 0),
}
# Place of a list of numbers in front of tensors.
_NUMBER_LISTS: Mapping[str, int] = {
    "aten::layer_norm": 1,
    "aten::native_layer_norm": 1,
    "aten::rms_norm": 1,
    "aten::_fused_rms_norm": 1,
    "aten::native_layer_norm_backward": 2,
    "aten::_fused_rms_norm_backward": 2,
}
_DIMS = "Input Dims"
_LONGEST = 1 << 16


def with_shapes(ops: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return ops that point to inputs instead of their text, and the inputs."""
    distinct = ops.select("name", "inputs").drop_nulls("inputs").unique()
    names, sizes = (distinct[column].cast(pl.String) for column in ("name", "inputs"))
    texts = [_as_recorded(name, text) for name, text in zip(names, sizes, strict=True)]
    placed = distinct.with_columns(recorded=pl.Series(texts, dtype=pl.Categorical))
    column = ops.select("name", "inputs").join(
        placed, on=["name", "inputs"], how="left", maintain_order="left"
    )["recorded"]
    inputs, table = decode_inputs(column)
    return ops.with_columns(inputs), table


def _as_recorded(name: str, text: str) -> str | None:
    """Return the shapes of an op as Kineto writes them; none of a broken text.

    >>> _as_recorded("aten::mm", "[[2, 3], [3, 4]]")
    '"Input Dims": [[2, 3], [3, 4]]'
    >>> _as_recorded("aten::cat", "[[2, 3], [2, 3], []]")
    '"Input Dims": [[[2,3],[2,3]],[]]'
    """
    if name not in _TENSOR_LISTS and name not in _NUMBER_LISTS:
        return f'"{_DIMS}": {text}' if len(text) < _LONGEST else None
    try:
        sizes = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if name in _NUMBER_LISTS:
        sizes.insert(_NUMBER_LISTS[name], [])
    else:
        before, after = _TENSOR_LISTS[name]
        end = len(sizes) - after
        if before < end:
            sizes[before:end] = [sizes[before:end]]
    return f'"{_DIMS}": {orjson.dumps(sizes).decode()}'
