"""Load options of one command."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


_kernels: ContextVar[Path | None] = ContextVar("kernels", default=None)
_captures: ContextVar[tuple[Path, ...]] = ContextVar("captures", default=())
_own: ContextVar[frozenset[str]] = ContextVar("own", default=frozenset())
_steps_by: ContextVar[str] = ContextVar("steps_by", default="")


def use_kernels(folder: Path | None) -> None:
    """Take what kernels of compiled code compute from this folder."""
    _kernels.set(folder)


def given_kernels() -> Path | None:
    """Return the folder of generated code, as ``use_kernels`` was told."""
    return _kernels.get()


def use_captures(files: Iterable[Path] | None) -> None:
    """Take the ops of replayed CUDA graphs from these traces of captures."""
    _captures.set(tuple(files or ()))


def given_captures() -> tuple[Path, ...]:
    """Return the traces of captures, as ``use_captures`` was told."""
    return _captures.get()


def use_own_code(names: frozenset[str]) -> None:
    """Take these packages for the user's own code."""
    _own.set(names)


def own_code() -> frozenset[str]:
    """Return the packages that are the user's own, as ``use_own_code`` was told."""
    return _own.get()


def use_steps(source: str) -> None:
    """Take steps from this source; empty for any."""
    _steps_by.set(source)


def steps_source() -> str:
    """Return what steps are taken from, as ``use_steps`` was told; empty for any."""
    return _steps_by.get()


@contextmanager
def restored() -> Iterator[None]:
    """Let all of this be as it was before, once the context ends."""
    before = [(one, one.get()) for one in (_kernels, _captures, _own, _steps_by)]
    try:
        yield
    finally:
        for variable, value in before:
            variable.set(value)  # type: ignore[arg-type]  # its own value
