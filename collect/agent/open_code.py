"""State of the running program: lines, open modules, phase, models and optimizers.

All of it is read from the Python frames when it is asked for, as after an error of the
allocator: nothing is hooked, so that it costs nothing before.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from types import FrameType
from typing import Any, Iterator

import torch
from torch.optim.optimizer import Optimizer

from .callers import is_base
from .source_names import SourceNames

_NO_COPIES = (3, 13)
MOST_FRAMES = 64
MOST_MODULES = 64
MOST_SHAPES = 8
_CALLS = ("_wrapped_call_impl", "_call_impl")
_BACKWARD = (os.path.join("torch", "autograd", ""), os.path.join("torch", "_tensor.py"))
# Nodes of autograd between an operator and the parameter that it uses: a transpose.
_NODES_TO_PARAMETER = 2


def describe() -> dict[str, Any]:
    """Return what the program is doing; a thread of autograd runs no Python lines."""
    here = _frames(sys._getframe(1))  # noqa: SLF001 - the one way to the own stack
    frames, thread = here, "own"
    if not any(map(_is_user, here)):
        main = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001
        frames, thread = _frames(main), "main"
    calls = [*frames, *(here if thread == "main" else ())]
    try:
        return _described_calls(frames, calls, thread)
    finally:
        _forget(calls)


def _forget(frames: list[FrameType]) -> None:
    """Let go of local variables: before Python 3.13 a frame holds a copy of them.

    A program that frees a tensor and tries again would not get its memory. A debugger
    may write the copy back, so it is left alone there.
    """
    if sys.version_info >= _NO_COPIES or sys.gettrace() is not None:
        return
    for frame in frames:
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            frame.f_locals.clear()


def _described_calls(
    frames: list[FrameType], calls: list[FrameType], thread: str
) -> dict[str, Any]:
    opened = _open_modules(calls)
    models, optimizers = _objects(frames)
    node = _node()
    return {
        "phase": _phase(calls, node, opened),
        "thread": thread,
        "stack": _lines(frames),
        "modules": _described(opened),
        "node": None if node is None else str(node.name()),
        "parameter": _parameter(node, models),
        "grad_enabled": torch.is_grad_enabled(),
        "inputs": _inputs(opened, frames),
        "models": [_model(model) for model in models],
        "optimizers": [_optimizer(optimizer) for optimizer in optimizers],
    }


def _frames(frame: FrameType | None) -> list[FrameType]:
    """Return a stack, the innermost frame first."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def program_lines(
    frame: FrameType | None, most: int = MOST_FRAMES
) -> list[dict[str, Any]]:
    """Return the program's own lines of a stack, the innermost first."""
    return _lines(_frames(frame))[:most]


def _is_user(frame: FrameType) -> bool:
    return not is_base(frame.f_code.co_filename)


def _lines(frames: list[FrameType]) -> list[dict[str, Any]]:
    """Return the program's own lines, the innermost first, as a snapshot names them."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    root = os.path.join(os.path.dirname(os.path.abspath(main)), "") if main else ""
    names = SourceNames()
    lines = []
    for frame in filter(_is_user, frames):
        path = frame.f_code.co_filename
        inside = root and path.startswith(root)
        lines.append(
            {
                "file": path[len(root) :] if inside else names.file(path),
                "line": frame.f_lineno,
                "function": frame.f_code.co_name,
            }
        )
    return lines[:MOST_FRAMES]


def _open_modules(frames: list[FrameType]) -> list[tuple[Any, FrameType]]:
    """Return the modules that run, outermost first, with the frame of each call."""
    modules: list[tuple[Any, FrameType]] = []
    for frame in reversed(frames):
        if frame.f_code.co_name in _CALLS:
            module = frame.f_locals.get("self")
            known = any(module is one for one, _ in modules)
            if isinstance(module, torch.nn.Module) and not known:
                modules.append((module, frame))
    return modules[:MOST_MODULES]


def _described(opened: list[tuple[Any, FrameType]]) -> list[dict[str, Any]]:
    if not opened:
        return []
    root = opened[0][0]
    paths = {id(module): path for path, module in root.named_modules()}
    by_path = dict(root.named_modules())
    entries = []
    for module, frame in opened:
        path = paths.get(id(module))
        parent, _, last = (path or "").rpartition(".")
        numbered = path is not None and last.isdecimal()
        tensors = list(_tensors(_arguments(frame)))
        entries.append(
            {
                "path": path,
                "class": type(module).__name__,
                "training": module.training,
                "inputs": [list(tensor.shape) for tensor in tensors[:MOST_SHAPES]],
                "input_bytes": sum(
                    tensor.numel() * tensor.element_size() for tensor in tensors
                ),
                "position": int(last) if numbered else None,
                "siblings": len(list(by_path[parent].children())) if numbered else None,
            }
        )
    return entries


def _arguments(frame: FrameType) -> list[Any]:
    values = frame.f_locals
    named = values.get("kwargs")
    return [*values.get("args", ()), *(named.values() if named else ())]


def _tensors(values: Any, depth: int = 2) -> Iterator[Any]:
    """Yield the tensors among values, and in the lists and dicts among them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif depth and isinstance(value, dict):
            yield from _tensors(value.values(), depth - 1)
        elif depth and isinstance(value, (list, tuple)):
            yield from _tensors(value[:MOST_SHAPES], depth - 1)


def _inputs(
    opened: list[tuple[Any, FrameType]], frames: list[FrameType]
) -> list[list[int]]:
    """Return shapes of a step's inputs: of the outermost module, or of local tensors.

    Inputs are not computed and not trained: they are leaves without a gradient.
    """
    if opened:
        tensors = list(_tensors(_arguments(opened[0][1])))
        return [list(tensor.shape) for tensor in tensors[:MOST_SHAPES]]
    for frame in filter(_is_user, frames):
        names = [name for name in frame.f_locals if not name.startswith("__")]
        inputs = [
            list(tensor.shape)
            for tensor in _tensors(frame.f_locals[name] for name in names)
            if tensor.ndim and tensor.is_leaf and not tensor.requires_grad
        ]
        if inputs:
            return inputs[:MOST_SHAPES]
    return []


def _objects(frames: list[FrameType]) -> tuple[list[Any], list[Any]]:
    """Return the models and optimizers that the program's own frames hold."""
    modules: dict[int, Any] = {}
    optimizers: dict[int, Any] = {}
    for frame in filter(_is_user, frames):
        held = [*frame.f_locals.values()]
        owner = frame.f_locals.get("self")
        if frame.f_code.co_name == "<module>":
            held += frame.f_globals.values()
        if owner is not None and not isinstance(owner, torch.nn.Module):
            held += vars(owner).values() if hasattr(owner, "__dict__") else ()
        for value in held:
            if isinstance(value, torch.nn.Module):
                modules[id(value)] = value
            elif isinstance(value, Optimizer):
                optimizers[id(value)] = value
    inner = {
        id(part)
        for module in modules.values()
        for part in module.modules()
        if part is not module
    }
    roots = [one for key, one in modules.items() if key not in inner]
    return roots, list(optimizers.values())


def _model(module: Any) -> dict[str, Any]:
    parameters = list(module.parameters())
    return {
        "class": type(module).__name__,
        "training": module.training,
        "parameter_bytes": _bytes(parameters),
        "trainable_bytes": _bytes(
            parameter for parameter in parameters if parameter.requires_grad
        ),
        "gradient_bytes": _bytes(
            parameter.grad for parameter in parameters if parameter.grad is not None
        ),
        "repeated": _repeated(module),
    }


def _repeated(module: Any) -> dict[str, Any] | None:
    """Return the numbered submodules with the most parameters: the model's layers."""
    most = 0
    repeated = None
    for path, one in module.named_modules():
        layers = [*one.children()]
        kinds = {type(layer) for layer in layers}
        size = sum(_bytes(layer.parameters()) for layer in layers)
        if len(layers) > 1 and len(kinds) == 1 and size > most:
            most = size
            repeated = {
                "path": path,
                "class": kinds.pop().__name__,
                "count": len(layers),
            }
    return repeated


def _optimizer(optimizer: Any) -> dict[str, Any]:
    groups = optimizer.param_groups
    state = [
        tensor for entry in optimizer.state.values() for tensor in _tensors([entry])
    ]
    return {
        "class": type(optimizer).__name__,
        "parameter_bytes": _bytes(
            tensor for group in groups for tensor in group["params"]
        ),
        "state_bytes": _bytes(state),
        "fused": any(bool(group.get("fused")) for group in groups),
    }


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _phase(
    frames: list[FrameType], node: Any, opened: list[tuple[Any, FrameType]]
) -> str | None:
    if any(
        frame.f_code.co_name == "step"
        and isinstance(frame.f_locals.get("self"), Optimizer)
        for frame in frames
    ):
        return "optimizer"
    if node is not None or any(
        part in frame.f_code.co_filename and "backward" in frame.f_code.co_name
        for frame in frames
        for part in _BACKWARD
    ):
        return "backward"
    return "forward" if opened else None


def _node() -> Any:
    """Return the node of autograd that this thread runs; None outside a backward."""
    current = getattr(torch._C, "_current_autograd_node", None)  # noqa: SLF001
    return None if current is None else current()


def _parameter(node: Any, models: list[Any]) -> str | None:
    """Return the name of a parameter that the node's operator has used."""
    names = {
        id(parameter): name
        for model in models
        for name, parameter in model.named_parameters()
    }
    nodes = [] if node is None else [node]
    for _ in range(_NODES_TO_PARAMETER + 1):
        for item in nodes:
            name = names.get(id(getattr(item, "variable", None)))
            if name is not None:
                return name
        nodes = [
            inner
            for entry in nodes
            for inner, _ in entry.next_functions
            if inner is not None
        ]
    return None
