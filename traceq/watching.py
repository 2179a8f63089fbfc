"""Who works says how far it is; who wants to know listens.

Work that takes long is on many floors, and none of them has to pass a listener on.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    Watcher: TypeAlias = Callable[[str, int, int, str], None]

_watchers: list[Watcher] = []


def tell(phase: str, done: int = 0, total: int = 0, what: str = "") -> None:
    """Say what is being worked on: which of how many, and what that is."""
    # A second thread works ahead of the one that is watched.
    if _watchers and threading.current_thread() is threading.main_thread():
        _watchers[-1](phase, done, total, what)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Let a watcher hear of all work inside."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)
