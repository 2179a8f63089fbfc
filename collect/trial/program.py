"""The program as remedies see it: its optimizers, modules and loaders."""

from __future__ import annotations

import gc
from typing import Any, Mapping

import torch
from torch.utils.data import DataLoader, dataloader

from ..agent import torch_state


class Program:
    """Live objects of the program, looked up once when the trial begins."""

    def __init__(self) -> None:
        self.cuda = torch_state.uses_cuda()
        self.names: Mapping[str, int] | None = None
        """Names of the ops and kernels of a step; None while they are unknown."""
        self.optimizers: list[Any] = []
        self.loaders: list[Any] = []
        """DataLoaders, and iterators of them."""
        self.graphs = 0
        """CUDA graphs that the program holds."""
        graph = getattr(torch.cuda, "CUDAGraph", ())
        # A loop holds the iterator only.
        iterator = getattr(dataloader, "_BaseDataLoaderIter", DataLoader)
        modules: list[Any] = []
        # The type, not isinstance: that asks the object, which may be a proxy.
        for item in gc.get_objects():
            kind = type(item)
            if issubclass(kind, torch.optim.Optimizer):
                self.optimizers.append(item)
            elif issubclass(kind, torch.nn.Module):
                modules.append(item)
            elif issubclass(kind, (DataLoader, iterator)):
                self.loaders.append(item)
            elif issubclass(kind, graph):
                self.graphs += 1
        self.modules = _roots(modules)
        """Modules with weights that are part of no other module."""
        self.outermost: Any = max(self.modules, key=_weights, default=None)
        """The module with most weights among them."""


def _roots(modules: list[Any]) -> list[Any]:
    inner = {
        id(child)
        for module in modules
        for child in vars(module).get("_modules", {}).values()
    }
    return [
        module for module in modules if id(module) not in inner and _weights(module)
    ]


def _weights(module: Any) -> int:
    try:
        return sum(parameter.numel() for parameter in module.parameters())
    except Exception:  # noqa: BLE001 - a module may be half built
        return 0
