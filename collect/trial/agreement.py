"""Switches that all ranks of a job make at the same step.

One rank leads: it measures, decides, and publishes each switch some steps ahead in the
store of the job's rendezvous. The others follow, and time the same steps.
"""

from __future__ import annotations

import json
from typing import Any

from ..agent import meeting, process_facts
from ..shared import rank_set

MARGIN = meeting.MARGIN


class Agreement:
    """The list of switches, as one rank publishes it and the others read it."""

    def __init__(self, store: Any, key: str, *, leads: bool) -> None:
        self.leads = leads
        self.over = False
        """True if the store is gone, or the leader has published the end."""
        self._store = store
        self._key = key
        self._read = 0

    def publish(self, switch: dict[str, Any]) -> int:
        """Publish a switch and return its number."""
        self._read += 1
        try:
            self._store.set(f"{self._key}/{self._read}", json.dumps(switch))
            self._store.add(f"{self._key}/published", 1)
        except Exception:  # noqa: BLE001 - the program must continue
            self.over = True
        return self._read

    def next(self) -> tuple[int, dict[str, Any]] | None:
        """Return the number of the next switch, and the switch; None if there is none.

        It does not wait.
        """
        if self.over:
            return None
        try:
            if int(self._store.add(f"{self._key}/published", 0)) <= self._read:
                return None
            text = self._store.get(f"{self._key}/{self._read + 1}")
        except Exception:  # noqa: BLE001 - the program must continue
            self.over = True
            return None
        self._read += 1
        return self._read, json.loads(text)


def of_job(key: str, ranks: str | None) -> Agreement | None:
    """Return the agreement of a job of several ranks; None without torch.distributed.

    The lowest of ``ranks``, those that take part, leads.
    """
    rank, _, world_size = process_facts.rank()
    chosen = rank_set.within(ranks, world_size)
    store = meeting.store_of_job() if len(chosen) > 1 else None
    if store is None:
        return None
    return Agreement(store, f"traceq/{key}/try", leads=rank == min(chosen))
