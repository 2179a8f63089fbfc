"""torch.compile of the outermost module, with CUDA graphs."""

from __future__ import annotations

from typing import Any

from . import compile as compiled
from .base import ROUNDING


class Remedy(compiled.Remedy):
    """The outermost module compiled in place with ``mode="reduce-overhead"``."""

    name = "compile_reduce_overhead"
    rules = ("LCH001", "LCH002", "SRV001")
    advice = "reduce-overhead"
    summary = "torch.compile of the outermost module, with CUDA graphs"
    edit = 'model.compile(mode="reduce-overhead")'
    kind = ROUNDING
    slow = True
    mode = "reduce-overhead"

    def why_not(self, program: Any) -> str:
        if not program.cuda:
            return "the program does not use CUDA"
        return super().why_not(program)
