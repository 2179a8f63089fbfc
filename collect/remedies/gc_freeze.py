"""Python's garbage collector: live objects frozen, collections scheduled."""

from __future__ import annotations

import gc
from typing import Any

from .base import Base, Counts, changed

EVERY = 100  # steps between two collections of young objects


class Remedy(Base):
    """``gc.freeze()``, and a collection every 100 steps instead of at any moment."""

    name = "gc_freeze"
    rules = ("HST003", "HST004")
    advice = "gc."
    summary = "garbage collector frozen, and run every 100 steps"
    edit = "gc.collect(); gc.freeze(); gc.disable(); gc.collect(1) every 100 steps"
    plain_mean = True

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._steps = 0
        self._before = 0

    def why_not(self, program: Any) -> str:  # noqa: ARG002
        if not gc.isenabled():
            return "the program has disabled the garbage collector"
        return ""

    def apply(self, program: Any) -> None:  # noqa: ARG002
        self._enabled = gc.isenabled()
        if not self.used:
            gc.collect()
        gc.freeze()
        gc.disable()
        self.used += 1

    def step(self) -> None:
        self._steps += 1
        if self._steps % EVERY == 0:
            gc.collect(1)

    def undo(self, program: Any) -> None:  # noqa: ARG002
        gc.unfreeze()
        if self._enabled:
            gc.enable()

    def proof(self, before: Counts, after: Counts) -> str:
        return changed(before, after) or "the collector was off"
