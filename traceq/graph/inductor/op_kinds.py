"""Kinds of ops, as far as they distinguish the ops of one line."""

from __future__ import annotations

import re

GEMM = "gemm"
ATTENTION = "attention"
CONVOLUTION = "convolution"
LOOKUP = "lookup"
_KINDS = (
    (
        GEMM,
        "mm addmm bmm baddbmm _int_mm _scaled_mm addmv mv dot linear matmul einsum"
        " tensordot __matmul__ __rmatmul__ bilinear",
    ),
    (
        LOOKUP,
        "embedding embedding_dense_backward embedding_bag index index_select gather",
    ),
    (
        "view",
        "view reshape permute transpose t T mT unsqueeze squeeze expand select slice"
        " getitem _unsafe_view alias detach flatten unflatten chunk split unbind"
        " as_strided view_as expand_as split_with_sizes diagonal swapaxes movedim",
    ),
    (
        "cast",
        "to float half bfloat16 double type _to_copy convert_element_type clone"
        " contiguous type_as",
    ),
    ("sum", "add sub iadd isub add_ sub_"),
)
_KIND_OF = {name: kind for kind, names in _KINDS for name in names.split()}
_PARTS = (
    (ATTENTION, re.compile(r"scaled_dot_product|flash_attention|efficient_attention")),
    (CONVOLUTION, re.compile(r"^_?conv|convolution")),
    ("norm", re.compile(r"_norm|^norm")),
)
# What a line runs as it is written; nothing else of that line is made of it.
UNFUSED = (GEMM, ATTENTION, CONVOLUTION)
PASSING = ("view", "cast")


def kind_of(target: str) -> str:
    """Return the kind of an op, as far as it tells ops of one line apart.

    >>> kind_of("aten.addmm"), kind_of("linear"), kind_of("conv2d"), kind_of("mul")
    ('gemm', 'gemm', 'convolution', '')
    """
    name = target.rpartition(".")[2]
    if fixed_kind := _KIND_OF.get(name):
        return fixed_kind
    return next((kind for kind, part in _PARTS if part.search(name)), "")
