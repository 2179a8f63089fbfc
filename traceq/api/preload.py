"""Imports of modules that are needed next, while files are being read."""

from __future__ import annotations

import sys
from contextlib import contextmanager, suppress
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from traceq.linter.pack import Rules

_SWITCHED_S = 0.002


@contextmanager
def importing(*modules: str) -> Iterator[Thread]:
    """Import the rules and what runs them, and these modules, while files are read.

    Polars reads without Python's lock, and asks for it between its calls. Whoever
    holds the lock keeps it for long unless told otherwise.
    """
    import_module("traceq.inputs.load_recording")
    usual = sys.getswitchinterval()
    thread = Thread(target=_import_all, args=(modules,))
    thread.start()
    sys.setswitchinterval(_SWITCHED_S)
    try:
        yield thread
    finally:
        sys.setswitchinterval(usual)
        thread.join()


def _import_all(modules: Sequence[str]) -> None:
    # What goes wrong here does so again, and is told, where it is needed.
    with suppress(Exception):
        import_module("traceq.linter.engine")
        rules_of(())
        for module in modules:
            import_module(module)


def rules_of(packs: Sequence[Path]) -> Rules:
    """Return the rules that there are, with those of packs."""
    # They are many files, and of what is known none is needed.
    from traceq.linter.pack import load_rules  # noqa: PLC0415

    return load_rules(packs)
