"""Optimizers of torch whose implementation can be switched between steps."""

from __future__ import annotations

from typing import Any, Mapping

import torch

from .base import Base, Counts, changed

FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


def own(program: Any, names: tuple[str, ...]) -> list[Any]:
    """Return the program's optimizers that are exactly of these classes of torch."""
    kinds = [getattr(torch.optim, name) for name in names if hasattr(torch.optim, name)]
    return [optimizer for optimizer in program.optimizers if type(optimizer) in kinds]


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


class Implementation(Base):
    """Another implementation of the program's optimizers, by flags of their groups."""

    flags: Mapping[str, bool] = {}
    """Flags that choose it."""
    mark = ""
    """Part of the names of the ops that only it runs."""
    recompiles = True

    def __init__(self) -> None:
        super().__init__()
        self._before: list[tuple[Any, list[dict[str, Any]]]] = []

    def why_not(self, program: Any) -> str:
        if not program.optimizers:
            return "the program has no optimizer"
        return "" if self.open(program) else self.why_none(program)

    def open(self, program: Any) -> list[Any]:
        """Return the optimizers that can be switched to it."""
        raise NotImplementedError

    def why_none(self, program: Any) -> str:
        """Return why no optimizer can."""
        raise NotImplementedError

    def apply(self, program: Any) -> None:
        for entry in self.open(program):
            self._before.append((entry, switched(entry, **self.flags)))
            self.prepare(entry)
            self.used += 1

    def undo(self, program: Any) -> None:  # noqa: ARG002
        while self._before:
            one, flags = self._before.pop()
            restore(one, flags)
            self.clean(one)

    def prepare(self, optimizer: Any) -> None:
        """Change what else the implementation needs of an optimizer."""

    def clean(self, optimizer: Any) -> None:
        """Take back what ``prepare`` changed."""

    def proof(self, before: Counts, after: Counts) -> str:
        new = [name for name in after if self.mark in name and name not in before]
        return f"{new[0]} runs" if new else changed(before, after)
