"""Loaded by every Python process of the program: waits until it imports torch.

It never imports torch itself and never raises into the program. Everything that needs
torch is in session.py and below, which is imported after torch.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from typing import TYPE_CHECKING, Callable

from ..shared import status_files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class _AfterImport(MetaPathFinder):
    """Call ``then`` once the program has imported the module ``name``.

    Looking a module up, as importlib.util.find_spec does, does not import it: the
    finder stays until the module has been executed.
    """

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self.name = name
        self.then = then

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Then(spec.loader, self)
                return spec
        return None


class _Then(Loader):
    """The module's own loader, followed by one call; removed once it has loaded."""

    def __init__(self, loader: Loader, finder: _AfterImport) -> None:
        self.loader = loader
        self.finder = finder

    def __getattr__(self, name: str) -> object:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
            self.finder.then()


def arm() -> None:
    """Start when the program imports torch."""
    status_files.mark("python")
    sys.meta_path.insert(0, _AfterImport("torch", _begin))


def _begin() -> None:
    try:
        status_files.mark("torch")
        begin: Callable[[], None] = import_module(".session", __package__).begin
        begin()
    except Exception as error:  # noqa: BLE001 - the program must continue
        status_files.mark("failed", f"{type(error).__name__}: {error}")
        if os.environ.get("TRACEQ_TRACEBACK"):
            sys.excepthook(type(error), error, error.__traceback__)
