"""The backends of scaled dot product attention: all enabled, cuDNN's preferred."""

from __future__ import annotations

from typing import Any

import torch

from .base import ROUNDING, Base, has

_HOPPER = 9
_SWITCHES = ("flash", "mem_efficient", "cudnn")


class Remedy(Base):
    """Enables the fused backends; on Hopper and later prefers cuDNN's."""

    name = "sdpa_backend"
    rules = ("ATT001", "ATT002", "ATT005")
    summary = "fused attention backends enabled, cuDNN's first"
    kind = ROUNDING
    edit = "with torch.nn.attention.sdpa_kernel([...], set_priority=True)"
    recompiles = True

    def __init__(self) -> None:
        super().__init__()
        self._disabled: list[str] = []
        self._order: Any = None

    def why_not(self, program: Any) -> str:
        if not program.cuda:
            return "the program does not use CUDA"
        if not has(program.names, "scaled_dot_product"):
            return "the program does not call scaled_dot_product_attention"
        if not _disabled() and not _can_prefer():
            return "all backends are enabled, and cuDNN's is not for this GPU"
        return ""

    def apply(self, program: Any) -> None:  # noqa: ARG002
        self._disabled = _disabled()
        for name in self._disabled:
            _enable(name, on=True)
        if _can_prefer():
            native: Any = torch._C  # noqa: SLF001
            self._order = native._get_sdp_priority_order()  # noqa: SLF001
            kinds: Any = torch.nn.attention.SDPBackend
            first = int(kinds.CUDNN_ATTENTION.value)
            rest = [number for number in map(int, self._order) if number != first]
            native._set_sdp_priority_order([first, *rest])  # noqa: SLF001

    def undo(self, program: Any) -> None:  # noqa: ARG002
        for name in self._disabled:
            _enable(name, on=False)
        self._disabled = []
        if self._order is not None:
            native: Any = torch._C  # noqa: SLF001
            native._set_sdp_priority_order(list(map(int, self._order)))  # noqa: SLF001
            self._order = None


def _disabled() -> list[str]:
    backends: Any = torch.backends.cuda
    asked = (
        (name, getattr(backends, f"{name}_sdp_enabled", None)) for name in _SWITCHES
    )
    return [name for name, ask in asked if ask is not None and not ask()]


def _enable(name: str, *, on: bool) -> None:
    getattr(torch.backends.cuda, f"enable_{name}_sdp")(on)


def _can_prefer() -> bool:
    native: Any = torch._C  # noqa: SLF001
    return (
        hasattr(native, "_set_sdp_priority_order")
        and hasattr(native, "_get_sdp_priority_order")
        and hasattr(getattr(torch.nn, "attention", None), "SDPBackend")
        and torch.cuda.is_available()
        and torch.cuda.get_device_capability()[0] >= _HOPPER
    )
