"""Floating-point operations of matmuls, convolutions and attention.

They are counted from the shapes of inputs, on the op that calls the library and not
again on its callers. Without shapes there is no count: under CUDA graphs, in Triton
templates, and where shapes were not recorded.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.base.assumptions import ATTENTION_BACKWARD
from traceq.analysis.base.group_ids import alike
from traceq.analysis.base.ownership import named, plain
from traceq.analysis.patterns.attention import FUSED_ARGUMENTS, attention_flops
from traceq.analysis.patterns.matmul import MATMULS
from traceq.model.dtypes import FLOAT32, SHORT

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceq.model.trace import Trace

COMPUTING = ("gemm", "conv", "attention")
"""Kinds of kernels whose operations can be counted."""
# Indices of the two matrices among an op's inputs.
_MATMULS = MATMULS | {"aten::_scaled_mm": (0, 1), "aten::_grouped_mm": (0, 1)}
_CONVOLUTION = "aten::convolution"
_CONVOLUTION_BACKWARD = "aten::convolution_backward"
_COUNTED = (*_MATMULS, *FUSED_ARGUMENTS, _CONVOLUTION, _CONVOLUTION_BACKWARD)


def op_flops(trace: Trace) -> pl.DataFrame:
    """Return the ops that can be counted: ``op``, ``flops``, ``type`` of their data."""
    ops = trace.ops
    rows = ops["id"].filter(named(ops, _COUNTED) & trace.ran)
    calls, inputs = ops["name"][rows], ops["inputs"][rows]
    number, first = alike(calls, inputs)
    names = plain(ops, calls[first])
    shapes = trace.inputs[["dims", "types", "values"]][inputs[first]]
    # Lists are taken out of a column in a third of the time that rows of them take.
    dims, types, values = (column.to_list() for column in shapes)
    flops = pl.Series(map(_count, names, dims, values), dtype=pl.Float64)
    data = pl.Series(map(_data_type, types), dtype=pl.String)
    return pl.DataFrame(
        {
            "name": names[number],
            "flops": flops[number],
            "type": data[number],
            "op": rows,
        }
    )


def computed_in() -> pl.Expr:
    """Return the dtype that an op computes in, of ``type`` and ``kernel_dtype``.

    The op is in float32 also where its kernel computes in TF32.
    """
    tf32 = (pl.col("type") == FLOAT32) & (pl.col("kernel_dtype") == "tf32")
    short = pl.col("type").replace_strict(SHORT, default=None)
    return pl.when(tf32).then(pl.lit("tf32")).otherwise(short)


def _count(
    name: str, dims: list[list[int]] | None, values: list[str] | None
) -> float | None:
    count: Callable[..., float]
    if name in _MATMULS:
        count = _matmul
    elif name in FUSED_ARGUMENTS:
        count = _attention
    else:
        count = _convolution
    try:
        return count(name, dims, values)
    except (IndexError, TypeError, ValueError):
        # Shapes that are missing, or not those of the op's schema.
        return None


def _matmul(name: str, dims: Any, _values: Any) -> float:  # noqa: ANN401 - unchecked
    left, right = (dims[at] for at in _MATMULS[name])
    return 2.0 * right[-1] * prod(left)


def _attention(name: str, dims: Any, values: Any) -> float:  # noqa: ANN401 - unchecked
    at = FUSED_ARGUMENTS[name]
    query, key, value = dims[at.query : at.query + 3]
    flops = attention_flops(query, key, value, causal=values[at.causal] == "True")
    return flops * ATTENTION_BACKWARD if name.endswith("_backward") else flops


def _convolution(name: str, dims: Any, values: Any) -> float:  # noqa: ANN401 - unchecked
    if name == _CONVOLUTION_BACKWARD:
        output, image, weight = dims[:3]
        wanted, transposed = 2, False
        if values:
            # Which of the gradients of image, weight and bias; the last is a sum.
            wanted = values[10].count("True", 0, values[10].rindex(","))
            transposed = values[7] == "True"
        return wanted * _one_convolution(image if transposed else output, weight)
    if values[6] == "True":
        # Transposed: the roles of input and output are exchanged.
        return _one_convolution(dims[0], dims[1])
    return _one_convolution(convolution_shape(dims, values), dims[1])


def convolution_shape(dims: Any, values: Any) -> list[int]:  # noqa: ANN401 - unchecked
    """Return the shape of what aten::convolution returns, if it is not transposed."""
    image, weight = dims[0], dims[1]
    stride, padding, dilation = (_numbers(values[at]) for at in (3, 4, 5))
    spatial = [
        (size + 2 * padding[at] - dilation[at] * (weight[2 + at] - 1) - 1) // stride[at]
        + 1
        for at, size in enumerate(image[2:])
    ]
    return [image[0], weight[0], *spatial]


def _one_convolution(output: list[int], weight: list[int]) -> float:
    return 2.0 * prod((*output, *weight[1:]))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.strip("[]").split(",")]


def _data_type(types: list[str] | None) -> str | None:
    return next((name for name in types or [] if name and name != "Scalar"), None)
