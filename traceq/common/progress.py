"""Progress and notices: long-running code reports them, the CLI displays them.

Long-running code is on many levels, and none of them has to pass a listener on.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    Progress: TypeAlias = Callable[[int, int], None] | None


class Watcher:
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


_DEAF = Watcher()
_watchers: list[Watcher] = []
_notes: ContextVar[list[str] | None] = ContextVar("notes", default=None)
_held: ContextVar[list[str] | None] = ContextVar("held", default=None)


def _here() -> Watcher:
    # Only the main thread reports progress: other threads work ahead of it.
    here = threading.current_thread() is threading.main_thread()
    return _watchers[-1] if _watchers and here else _DEAF


def tell(phase: str, done: int = 0, total: int = 0, what: str = "") -> None:
    """Report the current phase: the item's number, the total and its name."""
    _here().tell(phase, done, total, what)


def say(sentence: str) -> None:
    """Report a notice for the user that is not part of the result."""
    held = _held.get()
    if held is not None:
        held.append(sentence)
        return
    notes = _notes.get()
    if notes is not None:
        notes.append(sentence)
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
def watched(watcher: Watcher) -> Iterator[None]:
    """Send all progress events inside the context to a watcher."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


@contextmanager
def noted() -> Iterator[list[str]]:
    """Collect the notices inside the context, which are still displayed."""
    notes: list[str] = []
    outer = _notes.get()
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)
        if outer is not None:
            outer += notes


@contextmanager
def held() -> Iterator[list[str]]:
    """Hold back the notices inside the context, to be reported later."""
    sentences: list[str] = []
    token = _held.set(sentences)
    try:
        yield sentences
    finally:
        _held.reset(token)
