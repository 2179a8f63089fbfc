"""Progress and notices: long-running code reports them, the CLI displays them.

Long-running code is on many levels, and none of them has to pass a listener on.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    Progress: TypeAlias = Callable[[int, int], None] | None


class ProgressListener:
    """Receives progress events; the default ignores them."""

    def tell(self, phase: str, done: int, total: int, what: str) -> None:
        """Receive the current phase and item."""

    def say(self, sentence: str) -> None:
        """Receive a notice for the user that is not part of the result."""

    def expect(self, loads: int, works: int) -> None:
        """Receive the number of recordings to load, and to process."""

    def reading(self, _name: str) -> AbstractContextManager[Progress]:
        """Receive the start of reading a file; yield the callback for its bytes."""
        return nullcontext(None)

    def counting(self, _things: str) -> AbstractContextManager[Progress]:
        """Receive the start of counted work; yield the callback for the count."""
        return nullcontext(None)


class _Collectors(threading.local):
    """Lists that collect the notices of this thread, innermost last.

    One that defers its notices passes them to nobody.
    """

    def __init__(self) -> None:
        self.stack: list[tuple[list[str], bool]] = []


_NULL_LISTENER = ProgressListener()
_watchers: list[ProgressListener] = []
# By thread: several threads may load recordings at once, each with notices of its own.
_collectors = _Collectors()


def _here() -> ProgressListener:
    # Only the main thread reports progress: other threads work ahead of it.
    here = threading.current_thread() is threading.main_thread()
    return _watchers[-1] if _watchers and here else _NULL_LISTENER


def report_progress(phase: str, done: int = 0, total: int = 0, what: str = "") -> None:
    """Report the current phase: the item's number, the total and its name."""
    _here().tell(phase, done, total, what)


def notify(sentence: str) -> None:
    """Report a notice for the user that is not part of the result."""
    for sentences, deferred in reversed(_collectors.stack):
        sentences.append(sentence)
        if deferred:
            return
    if _watchers:
        _watchers[-1].say(sentence)


def expect(loads: int, works: int | None = None) -> None:
    """Report the number of recordings to load, and to process."""
    _here().expect(loads, loads if works is None else works)


def reading(name: str) -> AbstractContextManager[Progress]:
    """Report the start of reading a file; yield the callback for its bytes."""
    return _here().reading(name)


def counting(things: str) -> AbstractContextManager[Progress]:
    """Report the start of counted work; yield the callback for the count."""
    return _here().counting(things)


@contextmanager
def watched(watcher: ProgressListener) -> Iterator[None]:
    """Send all progress events inside the context to a watcher."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


@contextmanager
def collect_notices() -> Iterator[list[str]]:
    """Collect the notices of this thread, which are still displayed."""
    with _collecting(deferred=False) as sentences:
        yield sentences


@contextmanager
def defer_notices() -> Iterator[list[str]]:
    """Hold back the notices of this thread, to be reported later."""
    with _collecting(deferred=True) as sentences:
        yield sentences


@contextmanager
def _collecting(*, deferred: bool) -> Iterator[list[str]]:
    sentences: list[str] = []
    _collectors.stack.append((sentences, deferred))
    try:
        yield sentences
    finally:
        _collectors.stack.pop()
