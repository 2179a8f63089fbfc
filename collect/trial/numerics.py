"""Losses and gradients of the steps, to detect changes of results."""

from __future__ import annotations

from typing import Any, Callable

import torch

from ..agent import torch_state
from ..agent.wrapping import wrap


class Numerics:
    """Keeps the tensors that ``backward`` is called on, without waiting for them."""

    def __init__(self) -> None:
        self._roots: list[Any] = []
        self._keeps = False
        self._undo: Callable[[], None] | None = None

    def install(self) -> None:
        """Watch ``torch.autograd.backward``, which ``Tensor.backward`` calls."""
        self._undo = wrap(torch.autograd, "backward", self._backward)

    def remove(self) -> None:
        """Stop watching."""
        undo, self._undo = self._undo, None
        self._roots = []
        if undo is not None:
            undo()

    def begin(self) -> None:
        """Keep the losses from here on."""
        self._roots = []
        self._keeps = True

    def end(self) -> float | None:
        """Return the mean loss of the steps since; None if there was none."""
        roots, self._roots, self._keeps = self._roots, [], False
        try:
            values = [float(root) for root in roots]
        except Exception:  # noqa: BLE001 - a tensor may be anything
            return None
        return sum(values) / len(values) if values else None

    def _backward(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        if self._keeps:
            self._keep(args[0] if args else kwargs.get("tensors"))
        return method(*args, **kwargs)

    def _keep(self, root: Any) -> None:
        try:
            if isinstance(root, (list, tuple)):
                root = root[0]
            if root.numel() == 1 and not torch_state.capturing():
                self._roots.append(root.detach())
        except Exception:  # noqa: BLE001 - the program must continue
            return


def gradient_norm(optimizers: list[Any]) -> float | None:
    """Return the norm of all gradients there are; None without any."""
    try:
        gradients = [
            parameter.grad
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None and not parameter.grad.is_sparse
        ]
        if not gradients:
            return None
        with torch.no_grad():
            squares = [gradient.detach().float().norm() ** 2 for gradient in gradients]
            return float(sum(float(square) for square in squares) ** 0.5)
    except Exception:  # noqa: BLE001 - a gradient may be anything
        return None
