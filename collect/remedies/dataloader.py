"""DataLoaders with workers, pinning, persistence and prefetch."""

from __future__ import annotations

import inspect
import os
from typing import Any

import torch
from torch.utils.data import DataLoader

from .base import START, Base, Patches

MOST = 8  # workers
_PREFETCH = 4  # batches per worker


class Remedy(Base):
    """Every DataLoader gets workers; random transforms draw other numbers."""

    name = "dataloader"
    rules = ("DAT001", "DAT002", "LOG005")
    summary = "DataLoader with workers, pinned and persistent"
    when = START
    edit = (
        "num_workers=8, pin_memory=True, persistent_workers=True, prefetch_factor=4"
        " in the call of the DataLoader"
    )

    def __init__(self) -> None:
        super().__init__()
        self._patches = Patches()

    def why_not(self, program: Any) -> str:
        if not program.loaders:
            return "the program has no DataLoader"
        return "" if workers() > 1 else "the process has one core"

    def apply(self, program: Any) -> None:  # noqa: ARG002
        method: Any = DataLoader.__init__
        signature = inspect.signature(method)

        def init(this: Any, *args: Any, **kwargs: Any) -> None:
            try:
                bound = signature.bind(this, *args, **kwargs)
            except TypeError:
                method(this, *args, **kwargs)
                return
            chosen = bound.arguments
            if not chosen.get("num_workers"):
                self.used += 1
                chosen["num_workers"] = workers()
            if torch.cuda.is_available():
                chosen["pin_memory"] = True
            chosen["persistent_workers"] = True
            if not chosen.get("prefetch_factor"):
                chosen["prefetch_factor"] = _PREFETCH
            method(*bound.args, **bound.kwargs)

        self._patches.set(DataLoader, "__init__", init)

    def undo(self, program: Any) -> None:  # noqa: ARG002
        self._patches.undo()

    def idle(self) -> str:
        return "" if self.used else "all DataLoaders have workers"


def workers() -> int:
    """Return the number of workers for one process of this machine."""
    count = getattr(os, "sched_getaffinity", None)
    cores = len(count(0)) if count is not None else os.cpu_count() or 1
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, min(MOST, cores // (int(ranks) if ranks.isdecimal() else 1)))
