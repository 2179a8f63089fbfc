"""Settings of the CUDA allocator, which it reads when the program starts."""

from __future__ import annotations

import os
from typing import Any

import torch

from .base import START, Base, Counts

_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


class Remedy(Base):
    """``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``."""

    name = "allocator"
    rules = ("MEM001", "MEM004", "MEM005")
    summary = "expandable segments of the CUDA allocator"
    when = START
    environment = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}  # noqa: RUF012
    edit = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the environment"

    def why_not(self, program: Any) -> str:
        if not program.cuda:
            return "the program does not use CUDA"
        set_ = [os.environ[name] for name in _VARIABLES if name in os.environ]
        return f"the allocator is set to {set_[0]}" if set_ else ""

    def apply(self, program: Any) -> None:
        """Do nothing: the environment does it."""

    def undo(self, program: Any) -> None:
        """Do nothing: the process ends."""

    def proof(self, before: Counts, after: Counts) -> str:  # noqa: ARG002
        memory: Any = torch.cuda.memory
        settings = memory._snapshot().get("allocator_settings", {})  # noqa: SLF001
        used = settings.get("expandable_segments")
        return "the allocator's segments are expandable" if used else ""
