"""Packages of the process: installed ones, and the program's own.

Only names of top-level packages and modules are returned, never a path.
"""

from __future__ import annotations

import contextlib
import os
import site
import sys
import sysconfig
from typing import Any, Iterator

_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")
# The agent itself, and what every process has.
_LEFT_OUT = {"__main__", "__mp_main__", "sitecustomize", "usercustomize"}
_MOST = 5000


def packages() -> dict[str, list[str]]:
    """Return the imported top-level names under the program's roots, and installed."""
    libraries, roots = _libraries(), _roots()
    own, installed = set(), set()
    for name, folder in _imported():
        if _under(folder, libraries):
            installed.add(name)
        elif _under(folder, roots):
            own.add(name)
    return {"own": sorted(own)[:_MOST], "installed": sorted(installed - own)[:_MOST]}


def _imported() -> Iterator[tuple[str, str]]:
    for name, module in list(sys.modules.items()):
        if "." in name or name in _LEFT_OUT:
            continue
        for file in _files(module):
            yield name, file
    script = _script()
    if script:
        yield os.path.splitext(os.path.basename(script))[0], script


def _files(module: Any) -> list[str]:
    try:
        # A package without __init__.py has folders only.
        files = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    except Exception:  # noqa: BLE001 - modules may be anything
        return []
    known = [file for file in files if isinstance(file, str)]
    return [os.path.realpath(file) for file in known[:1]]


def _libraries() -> list[str]:
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in _INSTALLED if name in paths]
    try:
        folders += [*site.getsitepackages(), site.getusersitepackages()]
    except Exception:  # noqa: BLE001 - old virtual environments have no such functions
        folders += []
    folders += [path for path in sys.path if path.endswith("-packages")]
    return [os.path.realpath(folder) for folder in folders]


def _roots() -> list[str]:
    """Return the repository of the script, its folder, and those of where it runs."""
    script = _script()
    starts = [os.path.dirname(script)] if script else []
    with contextlib.suppress(OSError):  # the folder may be gone
        starts.append(os.path.realpath(os.getcwd()))
    return [*starts, *filter(None, map(_repository, starts))]


def _script() -> str:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.realpath(file) if isinstance(file, str) else ""


def _repository(folder: str) -> str:
    while folder != os.path.dirname(folder):
        if os.path.exists(os.path.join(folder, ".git")):
            return folder
        folder = os.path.dirname(folder)
    return ""


def _under(file: str, folders: list[str]) -> bool:
    return any(
        file.startswith(os.path.join(folder, ""))
        for folder in folders
        # The root of the file system is no repository, nor a place of libraries.
        if folder != os.path.dirname(folder)
    )
