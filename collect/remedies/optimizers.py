"""Optimizers of torch whose implementation can be switched between steps."""

from __future__ import annotations

from typing import Any

import torch

FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


def own(program: Any, names: tuple[str, ...]) -> list[Any]:
    """Return the program's optimizers that are exactly of these classes of torch."""
    kinds = [getattr(torch.optim, name) for name in names if hasattr(torch.optim, name)]
    return [one for one in program.optimizers if type(one) in kinds]


def parameters(optimizer: Any) -> list[Any]:
    """Return the parameters that an optimizer updates."""
    return [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
    ]


def switched(optimizer: Any, **flags: Any) -> list[dict[str, Any]]:
    """Set flags of all groups and of the defaults; return those that they had."""
    before = []
    for group in _groups(optimizer):
        before.append({key: group.get(key) for key in flags})
        group.update(flags)
    return before


def restore(optimizer: Any, before: list[dict[str, Any]]) -> None:
    """Set the flags that the groups had."""
    for group, flags in zip(_groups(optimizer), before):
        group.update(flags)


def _groups(optimizer: Any) -> list[dict[str, Any]]:
    # zero_grad asks the defaults.
    return [optimizer.defaults, *optimizer.param_groups]


def move_steps(optimizer: Any, *, to_device: bool) -> None:
    """Move the step counters: a fused update reads them on the GPU, others here."""
    for parameter, state in optimizer.state.items():
        step = state.get("step")
        if torch.is_tensor(step):
            device = parameter.device if to_device else torch.device("cpu")
            state["step"] = step.to(device)
