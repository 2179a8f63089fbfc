"""Kernel families: a change within a family is not a switch of kernels."""

from __future__ import annotations

import re

_ARGUMENTS = re.compile(r"[<(].*", re.DOTALL)
_ALIGNED = re.compile(r"align\d+")
_WORDS = re.compile(r"[A-Za-z_]+")


def family(name: str) -> str:
    """Return the common name of kernels that differ in tiles and sizes alone.

    The alignment of matrices is kept: it makes a kernel slow or fast.

    >>> family("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopB_NTT")
    'nvjet_sm'
    >>> family("cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_32x3_nn_align8")
    'cutlass align8'
    >>> family("void at::native::vectorized_elementwise_kernel<4, Add>(int)")
    'vectorized_elementwise_kernel'
    """
    if name.startswith("Mem"):
        return name
    base = _ARGUMENTS.sub("", name.replace("(anonymous namespace)::", ""))
    base = base.removeprefix("void ").rpartition("::")[2]
    if base != name:
        return base
    words = _WORDS.match(base)
    aligned = _ALIGNED.search(base)
    parts = [words[0].strip("_") if words else base, aligned[0] if aligned else ""]
    return " ".join(filter(None, parts))
