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
    """Hears of work; this one does not listen."""

    def tell(self, phase: str, done: int, total: int, what: str) -> None:
        """Hear what is being worked on."""

    def say(self, sentence: str) -> None:
        """Hear what a user should know that is no part of the result."""

    def expect(self, loads: int, works: int) -> None:
        """Hear how many recordings are loaded, and how many of them worked on."""

    def reading(self, _name: str) -> AbstractContextManager[Progress]:
        """Hear that a file is read, and return who hears of its bytes."""
        return nullcontext(None)

    def counting(self, _things: str) -> AbstractContextManager[Progress]:
        """Hear that things are worked on, and return who hears how many."""
        return nullcontext(None)


_DEAF = Watcher()
_watchers: list[Watcher] = []
_notes: ContextVar[list[str] | None] = ContextVar("notes", default=None)
_held: ContextVar[list[str] | None] = ContextVar("held", default=None)


def _here() -> Watcher:
    # A second thread works ahead of the one that is watched.
    here = threading.current_thread() is threading.main_thread()
    return _watchers[-1] if _watchers and here else _DEAF


def tell(phase: str, done: int = 0, total: int = 0, what: str = "") -> None:
    """Say what is being worked on: which of how many, and what that is."""
    _here().tell(phase, done, total, what)


def say(sentence: str) -> None:
    """Say what a user should know that is no part of the result."""
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
    """Say how many recordings are loaded, and how many of them worked on."""
    _here().expect(loads, loads if works is None else works)


def reading(name: str) -> AbstractContextManager[Progress]:
    """Say that a file is read; who wants to know gets its bytes."""
    return _here().reading(name)


def counting(things: str) -> AbstractContextManager[Progress]:
    """Say that things are worked on; who wants to know gets how many."""
    return _here().counting(things)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Let a watcher hear of all work inside."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


@contextmanager
def noted() -> Iterator[list[str]]:
    """Keep what is said inside, whoever hears it."""
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
    """Keep what is said inside from all, to be said later."""
    sentences: list[str] = []
    token = _held.set(sentences)
    try:
        yield sentences
    finally:
        _held.reset(token)
