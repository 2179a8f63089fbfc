"""Activations stored instead of recomputed: checkpointing switched off."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.checkpoint as checkpointing

from .base import Base, Patches

_ROOM = 2  # times the peak that must fit: activations may be most of it


class Remedy(Base):
    """Gradient checkpointing switched off, where memory allows."""

    name = "no_checkpointing"
    rules = ("MEM011",)
    summary = "activations kept, not computed twice"
    edit = "call the function without torch.utils.checkpoint.checkpoint"
    recompiles = True
    counts = True

    def __init__(self) -> None:
        super().__init__()
        self._patches = Patches()

    def why_not(self, program: Any) -> str:
        if not program.optimizers:
            return "the program has no optimizer"
        if program.cuda:
            free, _ = torch.cuda.mem_get_info()
            cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
            if free + cached < _ROOM * torch.cuda.max_memory_allocated():
                return "too little GPU memory is free"
        return ""

    def apply(self, program: Any) -> None:  # noqa: ARG002
        module: Any = checkpointing
        remedy = self

        class Kept:
            """In place of the function that computes twice."""

            @staticmethod
            def apply(function: Any, _preserve: Any, *args: Any) -> Any:
                remedy.used += 1
                return function(*args)

        def kept(*_args: Any, **_kwargs: Any) -> Any:
            remedy.used += 1
            yield

        self._patches.set(module, "CheckpointFunction", Kept)
        if hasattr(module, "_checkpoint_without_reentrant_generator"):
            self._patches.set(module, "_checkpoint_without_reentrant_generator", kept)

    def undo(self, program: Any) -> None:  # noqa: ARG002
        self._patches.undo()

    def idle(self) -> str:
        return "" if self.used else "the program does not checkpoint"
