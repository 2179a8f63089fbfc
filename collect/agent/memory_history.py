"""The CUDA caching allocator's history of a few steps, and its snapshot file."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any

import torch

from . import torch_state
from .files import check_room, compressed

cuda_api: Any = torch.cuda  # parts of it have no types


class MemoryHistory:
    """The allocator's history, with Python stacks, from creation to ``stop``."""

    ENTRIES = 100_000
    starting = False
    """True while this class calls torch's recorder, which the program may call, too."""

    def __init__(self, entries: int = ENTRIES, context: str = "all") -> None:
        """Keep up to ``entries``; ``context`` says which have a stack."""
        self._record = cuda_api.memory._record_memory_history  # noqa: SLF001
        wanted = {"context": context, "stacks": "python", "max_entries": entries}
        known = inspect.signature(self._record).parameters
        self._call("all", **{key: wanted[key] for key in wanted if key in known})

    def stop(self) -> None:
        """Turn the history off again."""
        self._call(None)

    def _call(self, enabled: str | None, **options: Any) -> None:
        MemoryHistory.starting = True
        try:
            self._record(enabled, **options)
        finally:
            MemoryHistory.starting = False

    def snapshot(self) -> Any:
        """Return the allocator's state and history."""
        with torch_state.without_import_of_inductor():
            return cuda_api.memory._snapshot()  # noqa: SLF001


def write(snapshot: Any, file: Path) -> int:
    """Write a compressed snapshot and return its size."""
    check_room(file.parent, 0)
    with compressed(file) as target:
        pickle.dump(snapshot, target, protocol=4)
    return file.stat().st_size


def why_not(*, cuda: bool) -> str | None:
    """Return the reason why the allocator's history cannot be recorded, or None."""
    if not cuda:
        return "the program does not use CUDA, whose allocator keeps the history"
    if not hasattr(cuda_api.memory, "_record_memory_history"):
        return "this version of torch cannot record the allocator's history"
    if is_on():
        return "the program records the allocator's history itself"
    return None


def is_on() -> bool:
    """Return whether the allocator's history is being recorded, if torch tells."""
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)  # noqa: SLF001
    return enabled is not None and bool(enabled())
