"""Import a folder of Python files under a private name, without sys.path."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


def mount(folder: Path, name: str) -> None:
    """Make a folder importable as the package ``name``, and only as that.

    What was imported under that name before is forgotten. The folder's own name never
    enters the import system: it may be called ``rules`` while the user has a module
    of that name.
    """
    for known in [key for key in sys.modules if key.split(".")[0] == name]:
        del sys.modules[known]
    importlib.invalidate_caches()
    spec = ModuleSpec(name, loader=None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    sys.modules[name] = module_from_spec(spec)


def walk(folder: Path, name: str) -> Iterator[tuple[Path, ModuleType]]:
    """Import every public module of a mounted folder, in the order of their paths."""
    found: list[tuple[str, ...]] = []
    for place, _, names in os.walk(folder):
        above = Path(place).relative_to(folder).parts
        found += [(*above, one) for one in names if one.endswith(".py")]
    for parts in sorted(found):
        if not any(part.startswith(("_", ".")) for part in parts):
            module = ".".join((name, *parts)).removesuffix(".py")
            yield folder.joinpath(*parts), importlib.import_module(module)
