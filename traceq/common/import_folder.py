"""Import a folder of Python files under a private name, without sys.path."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import CodeType, ModuleType


# What a file or a folder begins with that is none of rules.
_HIDDEN = ("_", ".")


def mount(folder: Path, name: str, *, edited: bool = False) -> None:
    """Make a folder importable as the package ``name``, and only as that.

    What was imported under that name before is forgotten. The folder's own name never
    enters the import system: it may be called ``rules`` while the user has a module
    of that name. Of a folder that may just have been ``edited``, no bytecode is used.
    """
    if edited:
        _EDITED.packages.add(name)
        if _EDITED not in sys.meta_path:
            sys.meta_path.insert(0, _EDITED)
        # Only then: Python lists every folder again that it imports from.
        importlib.invalidate_caches()
    for module in [key for key in sys.modules if key.split(".")[0] == name]:
        del sys.modules[module]
    spec = ModuleSpec(name, loader=None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    sys.modules[name] = module_from_spec(spec)


def walk(folder: Path, name: str) -> Iterator[tuple[Path, ModuleType]]:
    """Import every public module of a mounted folder, in the order of their paths."""
    files: list[tuple[str, ...]] = []
    for place, below, names in os.walk(folder):
        below[:] = [item for item in below if not item.startswith(_HIDDEN)]
        above = Path(place).relative_to(folder).parts
        files += [(*above, item) for item in names if item.endswith(".py")]
    for parts in sorted(files):
        if not parts[-1].startswith(_HIDDEN):
            module = ".".join((name, *parts)).removesuffix(".py")
            yield folder.joinpath(*parts), importlib.import_module(module)


class _EditedFinder(MetaPathFinder):
    """Finds the modules of packages that are compiled from what is in them now."""

    def __init__(self) -> None:
        self.packages: set[str] = set()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname.split(".", maxsplit=1)[0] not in self.packages:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _EditedLoader(fullname, spec.loader.path)
            spec.cached = None
        return spec


class _EditedLoader(SourceFileLoader):
    """Compiles a module's file each time.

    Python takes its bytecode for current where the second of the last edit and the
    size are the same: what is edited twice within a second stays as it was.
    """

    def get_code(self, fullname: str) -> CodeType:
        file = self.get_filename(fullname)
        return self.source_to_code(self.get_data(file), file)


_EDITED = _EditedFinder()
