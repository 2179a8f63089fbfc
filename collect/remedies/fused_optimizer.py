"""The fused implementation of torch's optimizers: one kernel for many parameters."""

from __future__ import annotations

from typing import Any

import torch

from . import optimizers
from .base import ROUNDING, Base, Counts, changed

_AMP = "_step_supports_amp_scaling"


class Remedy(Base):
    """``fused=True`` of all optimizers, between steps."""

    name = "fused_optimizer"
    rules = ("LCH003", "LCH004")
    summary = "fused optimizer"
    kind = ROUNDING
    edit = "fused=True in the call of the optimizer"
    recompiles = True

    def __init__(self) -> None:
        super().__init__()
        self._before: list[tuple[Any, list[dict[str, Any]]]] = []

    def why_not(self, program: Any) -> str:
        if not program.optimizers:
            return "the program has no optimizer"
        own = optimizers.own(program, optimizers.FUSED)
        if not own:
            kinds = ", ".join(
                sorted({type(one).__name__ for one in program.optimizers})
            )
            return f"torch has no fused {kinds}"
        return "" if self._open(program) else _why_none(own)

    def _open(self, program: Any) -> list[Any]:
        own = optimizers.own(program, optimizers.FUSED)
        return [one for one in own if not _refusal(one)]

    def apply(self, program: Any) -> None:
        for one in self._open(program):
            self._before.append(
                (one, optimizers.switched(one, fused=True, foreach=False))
            )
            setattr(one, _AMP, True)
            optimizers.move_steps(one, to_device=True)
            self.used += 1

    def undo(self, program: Any) -> None:  # noqa: ARG002
        while self._before:
            one, flags = self._before.pop()
            optimizers.restore(one, flags)
            if _AMP in vars(one):
                delattr(one, _AMP)
            optimizers.move_steps(one, to_device=False)

    def proof(self, before: Counts, after: Counts) -> str:
        fused = [name for name in after if "_fused_" in name and name not in before]
        return f"{fused[0]} runs" if fused else changed(before, after)


def _why_none(own: list[Any]) -> str:
    return next(filter(None, map(_refusal, own)), "there is nothing to fuse")


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
