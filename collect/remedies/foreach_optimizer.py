"""The foreach implementation of torch's optimizers, where it was switched off."""

from __future__ import annotations

from typing import Any

import torch

from . import optimizers
from .base import ROUNDING, Base, Counts, changed


class Remedy(Base):
    """``foreach=True`` of all optimizers that loop over their parameters."""

    name = "foreach_optimizer"
    rules = ("LCH003",)
    summary = "foreach optimizer"
    kind = ROUNDING
    edit = "foreach=True in the call of the optimizer"
    recompiles = True

    def __init__(self) -> None:
        super().__init__()
        self._before: list[tuple[Any, list[dict[str, Any]]]] = []

    def why_not(self, program: Any) -> str:
        if not program.optimizers:
            return "the program has no optimizer"
        if not self._open(program):
            return "no optimizer of torch loops over its parameters"
        return ""

    def _open(self, program: Any) -> list[Any]:
        return [one for one in program.optimizers if _loops(one)]

    def apply(self, program: Any) -> None:
        for one in self._open(program):
            self._before.append((one, optimizers.switched(one, foreach=True)))
            self.used += 1

    def undo(self, program: Any) -> None:  # noqa: ARG002
        while self._before:
            optimizers.restore(*self._before.pop())

    def proof(self, before: Counts, after: Counts) -> str:
        new = [name for name in after if "_foreach_" in name and name not in before]
        return f"{new[0]} runs" if new else changed(before, after)


def _loops(optimizer: Any) -> bool:
    """Return whether an optimizer updates one parameter after the other."""
    if not type(optimizer).__module__.startswith("torch.optim"):
        return False
    if any(
        "foreach" not in group or group.get("fused") or group.get("differentiable")
        for group in optimizer.param_groups
    ):
        return False
    if any(group["foreach"] for group in optimizer.param_groups):
        return False
    found = optimizers.parameters(optimizer)
    on_cuda = all(one.is_cuda and type(one) is torch.nn.Parameter for one in found)
    explicit = any(group["foreach"] is False for group in optimizer.param_groups)
    return explicit or not on_cuda
