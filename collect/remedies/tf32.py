"""TF32 tensor cores for float32 matmuls."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from .base import ROUNDING, Base, Counts, changed, has

_AMPERE = 8


class Remedy(Base):
    """``torch.set_float32_matmul_precision("high")``, between steps."""

    name = "tf32"
    rules = ("GEM001", "LOG004")
    summary = "float32 matmuls on TF32 tensor cores"
    kind = ROUNDING
    edit = 'torch.set_float32_matmul_precision("high")'
    recompiles = True

    def __init__(self) -> None:
        super().__init__()
        self._before = "highest"

    def why_not(self, program: Any) -> str:
        if not program.cuda:
            return "the program does not use CUDA"
        if torch.cuda.get_device_capability()[0] < _AMPERE:
            return "the GPU has no TF32"
        if torch.get_float32_matmul_precision() != "highest":
            return "TF32 is on already"
        if not has(program.names, "aten::mm", "aten::addmm", "aten::bmm", "baddbmm"):
            return "the program multiplies no matrices"
        return ""

    def apply(self, program: Any) -> None:  # noqa: ARG002
        self._before = torch.get_float32_matmul_precision()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.set_float32_matmul_precision("high")

    def undo(self, program: Any) -> None:  # noqa: ARG002
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.set_float32_matmul_precision(self._before)

    def proof(self, before: Counts, after: Counts) -> str:
        def tf32(names: Counts) -> int:
            return sum(names[name] for name in names if "tf32" in name.lower())

        more = tf32(after) - tf32(before)
        return f"{more} more TF32 kernels" if more > 0 else changed(before, after)
