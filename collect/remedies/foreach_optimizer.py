"""The foreach implementation of torch's optimizers, where it was switched off."""

from __future__ import annotations

from typing import Any, Mapping

import torch

from . import optimizers
from .base import ROUNDING


class Remedy(optimizers.Implementation):
    """``foreach=True`` of all optimizers that loop over their parameters."""

    name = "foreach_optimizer"
    rules = ("LCH003",)
    summary = "foreach optimizer"
    kind = ROUNDING
    edit = "foreach=True in the call of the optimizer"
    flags: Mapping[str, bool] = {"foreach": True}
    mark = "_foreach_"

    def open(self, program: Any) -> list[Any]:
        return [optimizer for optimizer in program.optimizers if _loops(optimizer)]

    def why_none(self, program: Any) -> str:  # noqa: ARG002
        return "no optimizer of torch loops over its parameters"


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
    result = optimizers.parameters(optimizer)
    on_cuda = all(
        entry.is_cuda and type(entry) is torch.nn.Parameter for entry in result
    )
    explicit = any(group["foreach"] is False for group in optimizer.param_groups)
    return explicit or not on_cuda
