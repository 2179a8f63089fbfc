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
    """Set the folder of generated code, which describes compiled kernels."""
    _kernels.set(folder)


def given_kernels() -> Path | None:
    """Return the folder of generated code that ``use_kernels`` set."""
    return _kernels.get()


def use_captures(files: Iterable[Path] | None) -> None:
    """Set the traces of captures, which have the ops of replayed CUDA graphs."""
    _captures.set(tuple(files or ()))


def given_captures() -> tuple[Path, ...]:
    """Return the traces of captures that ``use_captures`` set."""
    return _captures.get()


def use_own_code(names: frozenset[str]) -> None:
    """Set the packages that are the user's own code."""
    _own.set(names)


def own_code() -> frozenset[str]:
    """Return the packages that ``use_own_code`` set as the user's own."""
    return _own.get()


def use_steps(source: str) -> None:
    """Set the source of the steps; empty for any."""
    _steps_by.set(source)


def steps_source() -> str:
    """Return the source of the steps that ``use_steps`` set; empty for any."""
    return _steps_by.get()


@contextmanager
def restored() -> Iterator[None]:
    """Restore all options when the context ends."""
    before = [(one, one.get()) for one in (_kernels, _captures, _own, _steps_by)]
    try:
        yield
    finally:
        for variable, value in before:
            variable.set(value)  # type: ignore[arg-type]  # its own value
