"""Folder locations: bundled rules/, collect/ and demo, the user's settings and cache.

A wheel carries rules/ and collect/ inside the package, under ``_bundled/``; in a
checkout, and so in an editable install, they are next to the package.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Literal

from traceq.errors import InstallError, UsageError

_PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _PACKAGE.parent
# Where the demo's recordings are in a checkout.
_DEMO = {"before": "fixtures/tutorial/0", "after": "fixtures/tutorial/5"}
MEASURED = "measured.toml"
"""The name of the file with the measurements of a pack's rules."""
KEPT_PAGES = "rules-*.json"
"""The names of files with pages of rules in the cache directory."""


def bundled(name: Literal["rules", "collect"]) -> Path:
    """Return the folder ``name`` that belongs to this copy of traceq."""
    installed = _PACKAGE / "_bundled" / name
    if installed.is_dir():
        return installed
    # Only a checkout may look next door: in an installed copy that would be
    # site-packages, where a folder called "rules" is somebody else's.
    neighbour = _CHECKOUT / name
    if (_CHECKOUT / "pyproject.toml").is_file() and neighbour.is_dir():
        return neighbour
    msg = f"traceq is installed without its {name}/ folder; reinstall it"
    raise InstallError(msg)


def demo_recordings() -> dict[str, Path]:
    """Return the folders with the recordings of ``traceq demo``, by their names."""
    installed = _PACKAGE / "_bundled" / "demo"
    if installed.is_dir():
        return {name: installed / name for name in _DEMO}
    folders = {name: _CHECKOUT / place for name, place in _DEMO.items()}
    if not all(folder.is_dir() for folder in folders.values()):
        msg = "traceq is installed without the recordings of its demo; reinstall it"
        raise InstallError(msg)
    return folders


def config_directory() -> Path:
    """Return where a user's own settings are: the platform's usual place."""
    home = _home("this user has no home directory to keep settings in")
    if sys.platform == "win32":
        base = os.environ.get("APPDATA") or home / "AppData" / "Roaming"
    elif sys.platform == "darwin":
        base = home / "Library" / "Application Support"
    else:
        base = os.environ.get("XDG_CONFIG_HOME") or home / ".config"
    return Path(base) / "traceq"


def cache_directory() -> Path:
    """Return where things are kept: $TRACEQ_CACHE, or the platform's usual place."""
    if chosen := os.environ.get("TRACEQ_CACHE"):
        return Path(chosen)
    home = _home("this user has no home directory: set TRACEQ_CACHE to keep tables")
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or home / ".cache"
    return Path(base) / "traceq"


def _home(otherwise: str) -> Path:
    """Return the user's home directory; raise UsageError with this message without."""
    try:
        return Path.home()
    except RuntimeError:
        raise UsageError(otherwise) from None
