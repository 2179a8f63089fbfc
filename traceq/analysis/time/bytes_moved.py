"""The least bytes that an op has to move: inputs read once, the output written once.

They are counted from the shapes, dtypes and strides of its inputs; an expanded
dimension, whose stride is 0, is stored once. Gradients that torch computes in two
kernels read their inputs in each. What a trace does not say, as the shape that an index
picks, is left out: the count is a lower bound.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import compress
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from traceq.analysis.patterns.attention import FUSED_ARGUMENTS
from traceq.analysis.patterns.matmul import MATMULS
from traceq.analysis.time.flops import convolution_shape
from traceq.model.dtypes import ALL_SIZES, SHORT_SIZES

if TYPE_CHECKING:
    from collections.abc import Callable


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Ops whose output has the shape that their inputs broadcast to.
_ELEMENTWISE = _names(
    """
    _prelu_kernel abs add addcdiv addcmul atan2 bitwise_and bitwise_not bitwise_or
    bitwise_xor ceil celu clamp clamp_max clamp_min cos cosh div elu elu_backward eq
    erf erfc exp expm1 floor floor_divide fmod ge gelu gelu_backward glu gt hardsigmoid
    hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward
    isfinite isinf isnan le leaky_relu leaky_relu_backward lerp log log10 log1p log2
    log_sigmoid_backward logical_and logical_not logical_or logical_xor logit lt
    masked_fill maximum minimum mish mish_backward mse_loss_backward mul nan_to_num
    native_dropout_backward ne neg pow reciprocal relu remainder round rsqrt rsub selu
    sigmoid sigmoid_backward sign silu silu_backward sin sinh smooth_l1_loss_backward
    softplus softplus_backward sqrt square sub tan tanh tanh_backward threshold
    threshold_backward trunc where xlogy
    """
)
_UNARY = _names(
    """
    abs bitwise_not ceil clamp clamp_max clamp_min cos cosh erf erfc exp expm1 floor
    gelu hardsigmoid hardswish hardtanh isfinite isinf isnan leaky_relu log log10
    log1p log2 logical_not logit mish nan_to_num neg reciprocal relu round rsqrt selu
    sigmoid sign silu sin sinh softplus sqrt square tan tanh threshold trunc
    """
)
_COMPARES = _names(
    """
    eq ge gt isfinite isinf isnan le logical_and logical_not logical_or lt ne
    """
)
# Ops that read all their inputs and write little.
_REDUCTIONS = _names(
    """
    all amax amin any argmax argmin binary_cross_entropy
    binary_cross_entropy_with_logits count_nonzero linalg_vector_norm logsumexp max
    mean min mse_loss nonzero norm prod smooth_l1_loss std std_mean sum topk var
    var_mean _amp_foreach_non_finite_check_and_unscale_
    """
)
# Ops that read their inputs and write something like the first of them.
_LIKE_FIRST = _names(
    """
    _fused_dropout _fused_rms_norm _fused_rms_norm_backward _log_softmax
    _log_softmax_backward_data _prelu_kernel_backward _softmax
    _softmax_backward_data batch_norm_backward batch_norm_elemt cudnn_batch_norm
    cudnn_batch_norm_backward cumprod cumsum flip
    logcumsumexp miopen_batch_norm miopen_batch_norm_backward native_batch_norm
    native_batch_norm_backward native_dropout native_group_norm
    native_group_norm_backward native_layer_norm native_layer_norm_backward
    avg_pool2d_backward max_pool2d_with_indices_backward roll sort tril triu
    """
)
_FILLS = _names(
    """
    bernoulli exponential fill normal random uniform zero
    """
)
_CONVOLUTIONS = ("aten::convolution", "aten::convolution_backward")
# The argument that says of which inputs a convolution's gradients are.
_OUTPUT_MASK = 10
# Gradients of resized images, and their argument with the shape of the result.
_RESIZED = re.compile(r"^aten::_?upsample_\w+_backward$")
_RESIZED_FROM = 2
_TRITON = re.compile(r"^triton_")
_OPAQUE = re.compile(r"OpaqueType<(\d+)u?>")
# The bytes that such a kernel reads of its largest input depend on values.
_INDIRECT = re.compile(r"embedding|gather|index|scatter|select|slice|masked")
_FOREACH = "aten::_foreach_"
# Which of its lists of tensors a fused optimizer reads, and which it writes: weights,
# gradients, states.
_FUSED_OPTIMIZERS = {
    "aten::_fused_adam_": ((0, 1, 2, 3), (0, 2, 3)),
    "aten::_fused_adamw_": ((0, 1, 2, 3), (0, 2, 3)),
    "aten::_fused_sgd_": ((0, 1, 2), (0, 2)),
    "aten::_fused_adagrad_": ((0, 1, 2), (0, 2)),
}
_WEIGHT_BYTES = 4


class Call(NamedTuple):
    """An op and its inputs, as recorded."""

    name: str
    dims: list[list[int] | None] | None
    types: list[str] | None
    strides: list[list[int]] | None
    """Of use where an input is expanded: any is 0."""
    values: list[str] | None
    dims_text: str | None
    kernel: str
    """The name of a kernel that it launched."""
    dtype: str
    """The dtype in that name, as bf16."""
    gradients: Callable[[], float]
    """Returns the bytes of all gradients of a step, for ops on all weights."""


def least_bytes(call: Call) -> float | None:
    """Return the least bytes that an op has to move; None if they are unknown."""
    count = _counter(call.name)
    if count is None:
        return None
    try:
        return count(call)
    except (IndexError, KeyError, TypeError, ValueError):
        # Inputs that are missing, or not those of the op's schema.
        return None


def is_counted(name: str) -> bool:
    """Return whether the bytes of an op can be counted, given its inputs."""
    return _counter(name) is not None


@lru_cache(4096)
def _counter(name: str) -> Callable[[Call], float | None] | None:
    """Return the function that counts the bytes of an op; none for an unknown op."""
    plain = name.partition("::")[2]
    base = plain if plain in _REDUCTIONS else plain.rstrip("_")
    counters = (
        (name in MATMULS, _matmul),
        (name in FUSED_ARGUMENTS, _attention),
        (name in _CONVOLUTIONS, _convolution),
        (_TRITON.match(name) and not _INDIRECT.search(name), _all),
        (name.startswith(_FOREACH) or name in _FUSED_OPTIMIZERS, _multi_tensor),
        (plain in _SPECIAL, _SPECIAL.get(plain)),
        (base in _ELEMENTWISE, _elementwise),
        (base in _REDUCTIONS, _all),
        (base in _LIKE_FIRST, _like_first),
        (base in _FILLS, _fill),
        (_RESIZED.match(name), _resized),
    )
    return next((count for matches, count in counters if matches), None)


class _Tensor(NamedTuple):
    dims: list[int]
    size: int
    stored: int
    """Elements that are in memory: less than the shape says if it is expanded."""
    bytes: float


def _tensors(call: Call) -> list[_Tensor]:
    """Return the inputs that are tensors of a known dtype."""
    tensors = [
        _tensor(call, at)
        for at, kind in enumerate(call.types or ())
        if kind in ALL_SIZES
    ]
    return [tensor for tensor in tensors if tensor is not None]


def _tensor(call: Call, at: int) -> _Tensor | None:
    size = ALL_SIZES.get((call.types or [])[at])
    dims = (call.dims or [])[at]
    # A number as input has the type of its value, and no shape; so has a tensor
    # without dimensions, which hardly counts.
    if size is None or dims is None or (not dims and at):
        return None
    stored = prod(dims)
    if call.strides and stored and at < len(call.strides):
        strides = call.strides[at]
        if 0 in strides and len(strides) == len(dims):
            stored = prod(compress(dims, strides))
    return _Tensor(dims, size, stored, float(stored * size))


def _need(call: Call, at: int) -> _Tensor:
    tensor = _tensor(call, at)
    if tensor is None:
        raise ValueError(at)
    return tensor


def _all(call: Call) -> float | None:
    sizes = [tensor.bytes for tensor in _tensors(call)]
    return sum(sizes) if sizes else None


def _elementwise(call: Call) -> float | None:
    plain = call.name.rpartition("::")[2]
    base = plain.rstrip("_")
    tensors = _tensors(call)
    if base in _UNARY:
        # The following arguments are where to write the result.
        tensors = tensors[:1]
    elif base == "addcmul":
        # The factors may be one tensor: Adam squares the gradient so.
        tensors = tensors[:2]
    if not tensors:
        return None
    shape, size = tensors[0].dims, tensors[0].size
    if not plain.endswith("_"):
        shape = _broadcast([tensor.dims for tensor in tensors])
        size = 1 if base in _COMPARES else max([tensor.size for tensor in tensors])
    return sum([tensor.bytes for tensor in tensors]) + prod(shape) * size


def _broadcast(shapes: list[list[int]]) -> list[int]:
    """Return the shape that all of these broadcast to."""
    if shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    rank = max(map(len, shapes))
    padded = ([1] * (rank - len(shape)) + shape for shape in shapes)
    return [max(sizes) for sizes in zip(*padded, strict=True)]


def _like_first(call: Call) -> float | None:
    tensors = _tensors(call)
    if not tensors:
        return None
    first = max(tensors[:2], key=lambda tensor: tensor.stored)
    # A batch norm needs the mean of all before it can write any: it reads twice. So do
    # gradients of norms, whose weights have a kernel of their own.
    twice = "batch_norm" in call.name or call.name.endswith("norm_backward")
    reads = 2 if twice else 1
    read = reads * sum(tensor.bytes for tensor in tensors)
    return read + prod(first.dims) * first.size


def _resized(call: Call) -> float:
    """Return the bytes of the gradient of a resized image, and of its result.

    The result is as large as the image was before; where no argument shows that, it is
    left out.
    """
    gradient = _need(call, 0)
    result = (call.values or [])[_RESIZED_FROM : _RESIZED_FROM + 1]
    shape = orjson.loads(result[0]) if result and result[0] else [0]
    return gradient.bytes + prod(shape) * gradient.size


def _fill(call: Call) -> float:
    return _need(call, 0).bytes


def _matmul(call: Call) -> float:
    left, right = (_need(call, at) for at in MATMULS[call.name])
    written = prod(left.dims[:-1]) * right.dims[-1] * left.size
    return left.bytes + right.bytes + written


def _attention(call: Call) -> float:
    at = FUSED_ARGUMENTS[call.name].query
    query, key, value = (_need(call, at + place) for place in range(3))
    output = prod(query.dims[:-1]) * value.dims[-1] * query.size
    forward = query.bytes + key.bytes + value.bytes + output
    # The backward reads these and the output's gradient, and writes three gradients. A
    # kernel of its own multiplies the output by its gradient before.
    extra = query.bytes + key.bytes + value.bytes + 3 * output
    return forward + extra if call.name.endswith("_backward") else forward


def _convolution(call: Call) -> float:
    first, second = _need(call, 0), _need(call, 1)
    if call.name.endswith("_backward"):
        weight = _need(call, 2)
        mask = (call.values or [])[_OUTPUT_MASK : _OUTPUT_MASK + 1]
        of_image = not mask or not mask[0].startswith("[False")
        # The gradients of image and weight: a kernel each.
        of_weight = first.bytes + second.bytes + weight.bytes
        return of_weight * (2 if of_image else 1)
    values = call.values or []
    transposed = values[6] == "True"
    shape = [] if transposed else convolution_shape(call.dims, values)
    return first.bytes + second.bytes + (prod(shape) * first.size if shape else 0)


def _copy(call: Call) -> float:
    into, source = _need(call, 0), _need(call, 1)
    return into.bytes + source.bytes


def _embedding(call: Call) -> float:
    weight, indices = _need(call, 0), _need(call, 1)
    rows = prod(indices.dims)
    return rows * (indices.size + 2 * weight.dims[-1] * weight.size)


def _embedding_backward(call: Call) -> float:
    gradient, indices = _need(call, 0), _need(call, 1)
    weights = int((call.values or [])[2]) * gradient.dims[-1]
    return gradient.bytes + indices.bytes + weights * gradient.size


def _picked(call: Call) -> float:
    """Return the bytes of gather and scatter, which touch what their index says.

    They read and write an element for each of the index, which may be expanded; of the
    table they touch no more than there is.
    """
    table, index = _need(call, 0), _need(call, 2)
    picked = prod(index.dims)
    return index.bytes + float(picked + min(picked, table.stored)) * table.size


def _index_put(call: Call) -> float:
    values = _need(call, 2)
    return 2 * values.bytes


def _index_add(call: Call) -> float:
    return 3 * _need(call, 3).bytes + _need(call, 2).bytes


def _nll(call: Call) -> float:
    """Return the bytes of an NLL loss, which reads one value of each row."""
    scores, target = _need(call, 0), _need(call, 1)
    return prod(target.dims) * float(target.size + scores.size)


def _nll_backward(call: Call) -> float:
    return _need(call, 1).bytes


def _cat(call: Call) -> float:
    size = _OPAQUE.search(call.kernel)
    if size is None:
        raise ValueError(call.kernel)
    shapes = orjson.loads(call.dims_text or "[]")[0]
    return 2.0 * int(size[1]) * sum(map(prod, shapes))


def _multi_tensor(call: Call) -> float | None:
    """Return the bytes of an op on lists of tensors, as optimizers have them.

    Where the lists are not recorded they are taken for all weights: each is as large
    as all gradients of a step. That holds for one optimizer with one group of weights.
    """
    lists = [at for at, kind in enumerate(call.types or []) if kind == "TensorList"]
    reads, writes = _FUSED_OPTIMIZERS.get(call.name, (lists, lists[:1]))
    if call.name == f"{_FOREACH}addcmul_":
        reads = lists[:2]  # as for addcmul
    shapes: list[Any] = orjson.loads(call.dims_text or "[]")
    sizes = [
        sum(map(prod, shape)) if shape and isinstance(shape[0], list) else None
        for shape in shapes
    ]
    touched = [sizes[at] for at in (*reads, *writes)]
    if not touched:
        return None
    if None in touched:
        return call.gradients() * len(touched) or None
    size = SHORT_SIZES.get(call.dtype, _WEIGHT_BYTES)
    return float(size * sum(filter(None, touched)))


_SPECIAL: dict[str, Callable[[Call], float | None]] = {
    "_index_put_impl_": _index_put,
    "cat": _cat,
    "copy_": _copy,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "gather": _picked,
    "index_add": _index_add,
    "index_add_": _index_add,
    "index_put_": _index_put,
    "index_select": _embedding,
    "nll_loss2d_backward": _nll_backward,
    "nll_loss2d_forward": _nll,
    "nll_loss_backward": _nll_backward,
    "nll_loss_forward": _nll,
    "scatter": _picked,
    "scatter_": _picked,
    "scatter_add": _picked,
    "scatter_add_": _picked,
}
