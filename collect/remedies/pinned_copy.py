"""Copies to the GPU from pinned memory, which the host does not wait for."""

from __future__ import annotations

from typing import Any

import torch

from .base import Base, Counts, Patches, changed, has


class Remedy(Base):
    """Pins what is copied from pageable memory, and copies it non-blocking."""

    name = "pinned_copy"
    rules = ("CPY003", "CPY007")
    summary = "pinned, non-blocking copies to the GPU"
    edit = "pin_memory=True in the DataLoader, .to(device, non_blocking=True)"
    counts = True

    def __init__(self) -> None:
        super().__init__()
        self._patches = Patches()

    def why_not(self, program: Any) -> str:
        if not program.cuda:
            return "the program does not use CUDA"
        if not has(program.names, "Memcpy HtoD", "aten::_to_copy", "aten::copy_"):
            return "the program copies nothing to the GPU in a step"
        return ""

    def apply(self, program: Any) -> None:  # noqa: ARG002
        for name in ("to", "cuda"):
            self._patches.set(torch.Tensor, name, self._pinned(name))

    def _pinned(self, name: str) -> Any:
        method = getattr(torch.Tensor, name)
        default: Any = torch.device("cuda") if name == "cuda" else None

        def copy(this: Any, *args: Any, **kwargs: Any) -> Any:
            if type(this) is torch.Tensor and this.device.type == "cpu":
                target = args[0] if args else kwargs.get("device", default)
                if _is_cuda(target) and not this.is_sparse and not this.is_pinned():
                    self.used += 1
                    kwargs["non_blocking"] = True
                    if len(args) > 1 and isinstance(args[-1], bool):
                        kwargs.pop("non_blocking")
                    return method(this.pin_memory(), *args, **kwargs)
                if _is_cuda(target) and "non_blocking" not in kwargs and len(args) == 1:
                    self.used += 1
                    kwargs["non_blocking"] = True
            return method(this, *args, **kwargs)

        return copy

    def undo(self, program: Any) -> None:  # noqa: ARG002
        self._patches.undo()

    def idle(self) -> str:
        return "" if self.used else "no tensor in pageable memory is copied by .to()"

    def proof(self, before: Counts, after: Counts) -> str:
        pageable = "Memcpy HtoD (Pageable"
        fewer = _sum(before, pageable) - _sum(after, pageable)
        if fewer > 0:
            return f"{fewer} fewer copies from pageable memory"
        return changed(before, after) or f"{self.used} copies were changed"


def _sum(names: Counts, beginning: str) -> int:
    return sum(names[name] for name in names if name.startswith(beginning))


def _is_cuda(target: Any) -> bool:
    if isinstance(target, torch.device):
        return target.type == "cuda"
    if isinstance(target, str):
        return target.startswith("cuda")
    if isinstance(target, int) and not isinstance(target, bool):
        return True
    return isinstance(target, torch.Tensor) and target.is_cuda
