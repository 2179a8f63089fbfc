"""Agreement between the ranks of a job on the step at which all start to trace.

They agree through the store of the job's rendezvous, which holds numbers and is not
part of any collective: each rank decides on its own when it is warm, and a compilation
or a slow step would otherwise move the traced steps of one rank.
"""

from __future__ import annotations

import time
from typing import Any, Callable

import torch

MARGIN = 5  # steps between the decision and the start: a host may run ahead of another
MARGIN_MS = 2000  # the same where steps are not counted alike
PATIENCE = 50  # steps for which a rank waits for the others, ...
PATIENCE_S = 120.0  # ... and seconds


class Meeting:
    """The store of the job as the recording ranks use it; every call returns at once.

    Steps are numbered alike on all ranks, but for calls of an outermost module, which
    each rank finds at another call: there the start is a time of day.
    """

    def __init__(
        self, store: Any, key: str, ranks: int, numbered: Callable[[], bool]
    ) -> None:
        self.ranks = ranks
        self._store = store
        self._key = key
        self._numbered = numbered
        self._ready: tuple[int, float] | None = None
        self.over = False
        """True if the store is gone, and with it the process that held it."""

    def ready(self, seen: int, now: float) -> None:
        """Say that this rank can start; the last one decides when all do."""
        if self._ready is None:
            self._ready = (seen, now)
            if self._add("ready", 1) >= self.ranks:
                self._decide(seen)

    def starts(self, seen: int, now: float) -> bool:
        """Return whether the traced steps start at this boundary."""
        start = self._add("start", 0)
        if not start and self._impatient(seen, now):
            start = self._decide(seen)
        return self.over or 0 < start <= self._moment(seen)

    def done(self) -> None:
        """Say that this rank has recorded."""
        self._add("done", 1)

    def all_done(self) -> bool:
        """Return whether all ranks that record have recorded."""
        return self._add("done", 0) >= self.ranks or self.over

    def leave(self) -> None:
        """Say that a rank that does not record ends."""
        self._add("left", 1)

    def have_left(self, ranks: int) -> bool:
        """Return whether this many ranks that do not record are ending."""
        return self._add("left", 0) >= ranks or self.over

    def _impatient(self, seen: int, now: float) -> bool:
        since, began = self._ready or (seen, now)
        return seen - since >= PATIENCE or now - began >= PATIENCE_S

    def _decide(self, seen: int) -> int:
        """Set the start for all, unless another rank has just done so."""
        if self._add("decided", 1) != 1:
            return 0
        margin = MARGIN if self._numbered() else MARGIN_MS
        return self._add("start", self._moment(seen) + margin)

    def _moment(self, seen: int) -> int:
        return seen if self._numbered() else int(time.time() * 1000)

    def _add(self, name: str, amount: int) -> int:
        """Add to a number of the job, and return it; without a store there is none."""
        if not self.over:
            try:
                return int(self._store.add(f"{self._key}/{name}", amount))
            except Exception:  # noqa: BLE001 - the program must continue
                self.over = True
        return 0


def of_job(key: str, ranks: int, numbered: Callable[[], bool]) -> Meeting | None:
    """Return the meeting of a job of several ranks; None without torch.distributed."""
    store = store_of_job()
    if store is None:
        return None
    return Meeting(store, f"traceq/{key}", ranks, numbered)


def store_of_job() -> Any:
    """Return the store of the job's rendezvous; None without torch.distributed."""
    dist: Any = torch.distributed
    if not dist.is_available() or not dist.is_initialized():
        return None
    try:
        return dist.distributed_c10d._get_default_store()  # noqa: SLF001
    except Exception:  # noqa: BLE001 - private to torch; without it, no agreement
        return None
