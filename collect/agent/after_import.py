"""Callbacks that run once the program has imported a module; we never import it."""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class AfterImport(MetaPathFinder):
    """Call ``then`` once the program has imported the module ``name``.

    Looking a module up, as importlib.util.find_spec does, does not import it: the
    finder stays until the module has been executed.
    """

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self.name = name
        self.then = then
        self._looks = False  # whether it asks the other finders, which may ask it

    def wait(self) -> None:
        """Call at once if the module is there, else when the program imports it."""
        if self.name in sys.modules:
            self.then()
        else:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Wait no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != self.name or self._looks:
            return None
        self._looks = True
        try:
            return self._spec(fullname, path, target)
        finally:
            self._looks = False

    def _spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
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

    def __init__(self, loader: Loader, finder: AfterImport) -> None:
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
