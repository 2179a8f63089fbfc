"""Distributions that do not check their arguments."""

from __future__ import annotations

import sys
from typing import Any

from .base import Base, Patches


class Remedy(Base):
    """``Distribution.set_default_validate_args(False)``."""

    name = "validate_args"
    rules = ("SYN001", "SYN003", "HST003")
    advice = "validate_args"
    summary = "distributions without checks of their arguments"
    edit = "validate_args=False in the call of the distribution"
    recompiles = True
    counts = True

    def __init__(self) -> None:
        super().__init__()
        self._patches = Patches()

    def why_not(self, program: Any) -> str:  # noqa: ARG002
        kind = _distribution()
        if kind is None:
            return "the program does not import torch.distributions"
        if not kind._validate_args:  # noqa: SLF001
            return "the checks are off already"
        return ""

    def apply(self, program: Any) -> None:  # noqa: ARG002
        kind = _distribution()
        if kind is None:
            return
        before = kind._validate_args  # noqa: SLF001
        kind.set_default_validate_args(False)
        self._patches.call(lambda: kind.set_default_validate_args(before))
        method = kind.__init__

        def init(this: Any, *args: Any, **kwargs: Any) -> None:
            self.used += 1
            method(this, *args, **kwargs)

        self._patches.set(kind, "__init__", init)

    def undo(self, program: Any) -> None:  # noqa: ARG002
        self._patches.undo()

    def idle(self) -> str:
        return "" if self.used else "no distribution is created in a step"


def _distribution() -> Any:
    module = sys.modules.get("torch.distributions.distribution")
    return getattr(module, "Distribution", None)
