"""The channels_last memory format for convolutions."""

from __future__ import annotations

from typing import Any

import torch

from .base import ROUNDING, Base, has

_IMAGES = 4  # dimensions


class Remedy(Base):
    """Weights, the optimizer's state and the images, in channels_last."""

    name = "channels_last"
    rules = ("LAY001", "KRN005")
    advice = "channels_last"
    summary = "convolutions in channels_last"
    kind = ROUNDING
    edit = "model.to(memory_format=torch.channels_last), and the same for the images"
    first = 8

    def __init__(self) -> None:
        super().__init__()
        self._handles: list[Any] = []

    def why_not(self, program: Any) -> str:
        if not program.cuda:
            return "the program does not use CUDA"
        if not has(program.names, "convolution"):
            return "the program has no convolutions"
        if program.graphs or has(program.names or {}, "Compiled"):
            return "CUDA graphs or compiled code hold the weights as they are"
        modules = self._modules(program)
        if not modules:
            return "no module has a Conv2d"
        return (
            "" if _has_contiguous(modules) else "the weights are channels_last already"
        )

    def _modules(self, program: Any) -> list[Any]:
        kinds = (torch.nn.Conv2d, torch.nn.ConvTranspose2d)
        return [
            module
            for module in program.modules
            if any(isinstance(item, kinds) for item in module.modules())
        ]

    def apply(self, program: Any) -> None:
        modules = self._modules(program)
        self._to(program, modules, torch.channels_last)
        for module in modules:
            self._handles.append(module.register_forward_pre_hook(self._images))

    def _images(self, _module: Any, args: Any) -> Any:
        self.used += 1
        return tuple(
            arg.contiguous(memory_format=torch.channels_last) if _is_image(arg) else arg
            for arg in args
        )

    def _to(self, program: Any, modules: list[Any], kind: Any) -> None:
        for module in modules:
            module.to(memory_format=kind)
        for optimizer in program.optimizers:
            for parameter, state in optimizer.state.items():
                for key, value in state.items():
                    if _is_image(value) and value.shape == parameter.shape:
                        state[key] = value.contiguous(memory_format=kind)

    def undo(self, program: Any) -> None:
        while self._handles:
            self._handles.pop().remove()
        self._to(program, self._modules(program), torch.contiguous_format)

    def idle(self) -> str:
        return "" if self.used else "the module was not called"


def _is_image(value: Any) -> bool:
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.dim() == _IMAGES
        and torch.is_floating_point(value)
    )


def _has_contiguous(modules: list[Any]) -> bool:
    return any(
        _is_image(weight) and weight.is_contiguous() and max(weight.shape[2:]) > 1
        for module in modules
        for weight in module.parameters()
    )
