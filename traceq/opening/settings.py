"""What holds for all that is loaded at a user's request: until the request ends."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from traceq.linter.config import find_config, own_names, read_config
from traceq.opening.trust import with_trusted_packs
from traceq.units import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from traceq.linter.config import Config

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


def use_own(
    names: Sequence[str] | None,
    config: Config | None = None,
    steps_by: str | None = None,
) -> None:
    """Take these, and what the configuration names, for the user's own code.

    Take steps from what the user says, else from what the configuration says.
    """
    here = Path.cwd()
    config = config or find_config(here)
    _own.set(own_names(names or (), here) | config.own_code)
    _steps_by.set(steps_by or config.steps_by)


def own_code() -> frozenset[str]:
    """Return the packages that are the user's own, as ``use_own`` was told."""
    return _own.get()


def steps_source() -> str:
    """Return what steps are taken from, as ``use_own`` was told; empty for any."""
    return _steps_by.get()


@contextmanager
def asked(
    config: Config | None = None,
    *,
    own: Sequence[str] | None = None,
    steps_by: str | None = None,
    captures: Iterable[Path] | None = None,
    kernels: Path | None = None,
) -> Iterator[None]:
    """Let this hold for what is loaded inside."""
    before = [(one, one.get()) for one in (_kernels, _captures, _own, _steps_by)]
    try:
        use_own(own, config, steps_by)
        use_captures(captures)
        use_kernels(kernels)
        yield
    finally:
        for variable, value in before:
            variable.set(value)  # type: ignore[arg-type]  # its own value


def configuration(file: Path | None, *, packs: bool = True) -> Config:
    """Return the configuration in a file, else the nearest one with packs to trust.

    Without ``packs`` it names none, whoever trusts them.
    """
    found = read_config(file) if file else find_config(Path.cwd())
    if not packs:
        return replace(found, packs=())
    return found if file else with_trusted_packs(found)


def nanoseconds(step_ms: float | None) -> int | None:
    """Return a step time that was given in milliseconds."""
    return round(step_ms * NS_PER_MS) if step_ms else None
