"""cuDNN's choice of convolution algorithms by measurement."""

from __future__ import annotations

from typing import Any

import torch

from .base import ROUNDING, Base, has


class Remedy(Base):
    """``torch.backends.cudnn.benchmark = True``, between steps."""

    name = "cudnn_benchmark"
    rules = ("KRN005", "HST001")
    advice = "cudnn.benchmark"
    summary = "cuDNN picks convolution kernels by measurement"
    kind = ROUNDING
    edit = "torch.backends.cudnn.benchmark = True"
    first = 8

    def why_not(self, program: Any) -> str:
        if not program.cuda:
            return "the program does not use CUDA"
        if torch.backends.cudnn.benchmark:
            return "cudnn.benchmark is on already"
        if torch.backends.cudnn.deterministic:
            return "the program asks cuDNN for deterministic kernels"
        if not has(program.names, "convolution"):
            return "the program has no convolutions"
        return ""

    def apply(self, program: Any) -> None:  # noqa: ARG002
        torch.backends.cudnn.benchmark = True

    def undo(self, program: Any) -> None:  # noqa: ARG002
        torch.backends.cudnn.benchmark = False
