"""Where the two folders beside the package, rules/ and collect/, are at run time.

A wheel carries them inside the package, under ``_bundled/``; in a checkout, and
so in an editable install, they are the package's neighbours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from traceq.errors import InstallError

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parent


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
