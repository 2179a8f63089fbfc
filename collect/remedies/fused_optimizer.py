"""The fused implementation of torch's optimizers: one kernel for many parameters."""

from __future__ import annotations

from typing import Any, Mapping

import torch

from . import optimizers
from .base import ROUNDING

_AMP = "_step_supports_amp_scaling"


class Remedy(optimizers.Implementation):
    """``fused=True`` of all optimizers, between steps."""

    name = "fused_optimizer"
    rules = ("LCH003", "LCH004")
    summary = "fused optimizer"
    kind = ROUNDING
    edit = "fused=True in the call of the optimizer"
    flags: Mapping[str, bool] = {"fused": True, "foreach": False}
    mark = "_fused_"

    def open(self, program: Any) -> list[Any]:
        own = optimizers.own(program, optimizers.FUSED)
        return [entry for entry in own if not _refusal(entry)]

    def why_none(self, program: Any) -> str:
        own = optimizers.own(program, optimizers.FUSED)
        if own:
            return next(filter(None, map(_refusal, own)), "there is nothing to fuse")
        kinds = sorted({type(optimizer).__name__ for optimizer in program.optimizers})
        return f"torch has no fused {', '.join(kinds)}"

    def prepare(self, optimizer: Any) -> None:
        setattr(optimizer, _AMP, True)
        optimizers.move_steps(optimizer, to_device=True)

    def clean(self, optimizer: Any) -> None:
        if _AMP in vars(optimizer):
            delattr(optimizer, _AMP)
        optimizers.move_steps(optimizer, to_device=False)


def _refusal(optimizer: Any) -> str:
    """Return why an optimizer has no fused form; empty if it has one."""
    groups = optimizer.param_groups
    if not all("fused" in group for group in groups):
        return "this torch has no fused form of the optimizer"
    if any(group["fused"] for group in groups):
        return "the optimizer is fused already"
    if any(group.get("capturable") or group.get("differentiable") for group in groups):
        return "the optimizer is capturable or differentiable"
    refusals = map(_parameter_refusal, optimizers.parameters(optimizer))
    return next(filter(None, refusals), "")


def _parameter_refusal(parameter: Any) -> str:
    kind = parameter.device.type
    if parameter.is_sparse or not torch.is_floating_point(parameter):
        return "a parameter is sparse or not a floating point number"
    if kind not in ("cuda", "cpu"):
        return f"parameters are on {kind}"
    if kind == "cpu" and not _fuses_on_cpu():
        return "this torch fuses on the GPU only"
    return ""


def _fuses_on_cpu() -> bool:
    return hasattr(torch, "_fused_adam_") and _version() >= (2, 4)


def _version() -> tuple[int, ...]:
    return tuple(map(int, str(torch.__version__).split(".")[:2]))
