"""Floating-point operations of matrix products, convolutions and attention.

Counted from the shapes that the ops were given, on the op that calls the library and
never on its callers too. What has no shapes has no count: under CUDA graphs, in
Triton templates, and where shapes were not recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceq.trace import Trace

_BACKWARD_OF_ATTENTION = 2.5

# Which inputs of an op are the two matrices.
_PRODUCTS = {
    "aten::mm": (0, 1),
    "aten::_scaled_mm": (0, 1),
    "aten::_grouped_mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::bmm": (0, 1),
    "aten::baddbmm": (1, 2),
}
# Where attention ops have their query, and their flag for a causal mask.
_ATTENTION = {
    "aten::_scaled_dot_product_flash_attention": (0, 4),
    "aten::_scaled_dot_product_efficient_attention": (0, 6),
    "aten::_scaled_dot_product_cudnn_attention": (0, 6),
    "aten::_scaled_dot_product_flash_attention_backward": (1, 11),
    "aten::_scaled_dot_product_efficient_attention_backward": (1, 11),
    "aten::_scaled_dot_product_cudnn_attention_backward": (1, 14),
}
_CONVOLUTION = "aten::convolution"
_CONVOLUTION_BACKWARD = "aten::convolution_backward"
COUNTED = (*_PRODUCTS, *_ATTENTION, _CONVOLUTION, _CONVOLUTION_BACKWARD)


def op_flops(trace: Trace) -> pl.DataFrame:
    """Return the ops that can be counted: ``op``, ``flops``, ``type`` of their data."""
    # Some traces say which overload of an op was called, as aten::mm.out.
    name = pl.col("name").cast(pl.String).str.replace(r"\.\w+$", "")
    calls = trace.ops.select("id", "inputs", name).filter(
        pl.col("name").is_in(COUNTED), ~trace.ops["compiling"]
    )
    distinct = calls.select("name", "inputs").unique(maintain_order=True)
    shapes = distinct.join(
        trace.inputs.select("id", "dims", "types", "values"),
        left_on="inputs",
        right_on="id",
        how="left",
        maintain_order="left",
    )
    rows = [
        (*_count(row["name"], row["dims"], row["values"]), _data_type(row["types"]))
        for row in shapes.iter_rows(named=True)
    ]
    counted = distinct.with_columns(
        flops=pl.Series([row[0] for row in rows], dtype=pl.Float64),
        type=pl.Series([row[1] for row in rows], dtype=pl.String),
    )
    return calls.join(
        counted,
        on=["name", "inputs"],
        how="left",
        maintain_order="left",
        nulls_equal=True,
    ).select("name", "flops", "type", op="id")


def _count(
    name: str, dims: list[list[int]] | None, values: list[str] | None
) -> tuple[float | None]:
    count: Callable[..., float]
    if name in _PRODUCTS:
        count = _product
    elif name in _ATTENTION:
        count = _attention
    else:
        count = _convolution
    try:
        return (count(name, dims, values),)
    except (IndexError, TypeError, ValueError):
        # Shapes that are missing, or not those of the op's schema.
        return (None,)


def _product(name: str, dims: Any, _values: Any) -> float:  # noqa: ANN401 - unchecked
    left, right = (dims[at] for at in _PRODUCTS[name])
    flops = 2.0 * right[-1]
    for size in left:
        flops *= size
    return flops


def _attention(name: str, dims: Any, values: Any) -> float:  # noqa: ANN401 - unchecked
    first, causal = _ATTENTION[name]
    query, key, value = dims[first : first + 3]
    batch, heads, queries, width = query
    flops = 2.0 * batch * heads * queries * key[2] * (width + value[3])
    if values[causal] == "True":
        flops /= 2
    return flops * _BACKWARD_OF_ATTENTION if name.endswith("_backward") else flops


def _convolution(name: str, dims: Any, values: Any) -> float:  # noqa: ANN401 - unchecked
    if name == _CONVOLUTION_BACKWARD:
        output, image, weight = dims[:3]
        wanted, transposed = 2, False
        if values:
            # Which of the gradients of image, weight and bias; the last is a sum.
            wanted = values[10].count("True", 0, values[10].rindex(","))
            transposed = values[7] == "True"
        return wanted * _one_convolution(image if transposed else output, weight)
    image, weight = dims[0], dims[1]
    stride, padding, dilation = (_numbers(values[at]) for at in (3, 4, 5))
    if values[6] == "True":
        # Transposed: the roles of input and output are exchanged.
        return _one_convolution(image, weight)
    spatial = [
        (size + 2 * padding[at] - dilation[at] * (weight[2 + at] - 1) - 1) // stride[at]
        + 1
        for at, size in enumerate(image[2:])
    ]
    return _one_convolution([image[0], weight[0], *spatial], weight)


def _one_convolution(output: list[int], weight: list[int]) -> float:
    flops = 2.0
    for size in (*output, *weight[1:]):
        flops *= size
    return flops


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.strip("[]").split(",")]


def _data_type(types: list[str] | None) -> str | None:
    return next((name for name in types or [] if name and name != "Scalar"), None)
