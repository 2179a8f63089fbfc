"""Labels on the tensors of models and optimizers, for the allocator's history.

Since torch 2.14 a text can be attached to an allocation that lives. With it a snapshot
says for certain what is a parameter, a gradient, optimizer state or a buffer.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST = 5_000
"""Most labels at once: each is an event, and the history has room for few."""


def annotate() -> int:
    """Label what lives on the GPU, where torch can; return how many labels were set."""
    memory: Any = torch.cuda.memory
    attach = getattr(memory, "_annotate_tensor", None)
    if attach is None:
        return 0
    count = 0
    for tensor, label in labelled():
        if count == MOST:
            break
        if tensor.is_cuda:
            # A tensor without storage, or another allocator's, has no label.
            with suppress(RuntimeError, TypeError, ValueError):
                attach(tensor, label)
                count += 1
    return count


def labelled() -> Iterator[tuple[torch.Tensor, str]]:
    """Yield the tensors of all modules and optimizers that live, with their labels."""
    seen: set[int] = set()
    for tensor, what in _owned():
        if isinstance(tensor, torch.Tensor) and id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor, f"traceq: {what}"


def _owned() -> Iterator[tuple[Any, str]]:
    # Asks for the type alone: objects may answer anything to isinstance.
    things = gc.get_objects()
    modules = [
        activity for activity in things if issubclass(type(activity), torch.nn.Module)
    ]
    optimizers = [
        activity
        for activity in things
        if issubclass(type(activity), torch.optim.Optimizer)
    ]
    del things
    parameters = [
        value for module in modules for value in _values(module, "_parameters")
    ]
    yield from ((parameter, "parameters") for parameter in parameters)
    yield from (
        (getattr(parameter, "grad", None), "gradients") for parameter in parameters
    )
    for module in modules:
        yield from ((value, "buffers") for value in _values(module, "_buffers"))
    for optimizer in optimizers:
        for state in _values(optimizer, "state"):
            held = list(state.values()) if isinstance(state, dict) else []
            yield from ((entry, "optimizer state") for entry in held)


def _values(of: Any, name: str) -> list[Any]:
    """Return the values of an object's dict, which its constructor may not have set."""
    return list(getattr(of, name, {}).values())
