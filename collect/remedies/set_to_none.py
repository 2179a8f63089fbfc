"""Gradients set to None instead of zero."""

from __future__ import annotations

from typing import Any

import torch

from .base import Base, Patches


class Remedy(Base):
    """``zero_grad(set_to_none=True)`` wherever zeros were asked for."""

    name = "set_to_none"
    rules = ("LCH001", "LCH002", "LCH003")
    advice = "set_to_none"
    summary = "gradients set to None instead of zero"
    edit = "zero_grad(set_to_none=True)"
    counts = True

    def __init__(self) -> None:
        super().__init__()
        self._patches = Patches()

    def why_not(self, program: Any) -> str:
        if not program.optimizers:
            return "the program has no optimizer"
        return ""

    def apply(self, program: Any) -> None:
        owners: set[Any] = {torch.optim.Optimizer, torch.nn.Module}
        owners |= {
            type(optimizer)
            for optimizer in program.optimizers
            if "zero_grad" in vars(type(optimizer))
        }
        for owner in owners:
            self._patches.set(owner, "zero_grad", self._to_none(owner.zero_grad))

    def _to_none(self, method: Any) -> Any:
        def zero_grad(this: Any, set_to_none: bool = True) -> Any:  # noqa: FBT001, FBT002
            self.used += not set_to_none
            return method(this, set_to_none=True)

        return zero_grad

    def undo(self, program: Any) -> None:  # noqa: ARG002
        self._patches.undo()

    def idle(self) -> str:
        return "" if self.used else "gradients are set to None already"
