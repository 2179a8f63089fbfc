"""Which packs of rules may run: they are Python, and a configuration names them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from traceq.report.base.text import printable
from traceq.watching import say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceq.linter.config import Config


def with_trusted_packs(config: Config, folder: Path) -> Config:
    """Return a configuration that was found, without packs that nobody asked for.

    Packs run from a file that belongs to the user and lies in the repository around
    ``folder``; where there is no repository, in ``folder`` itself. Otherwise one
    sentence says what was not loaded.
    """
    if not config.packs or config.file is None:
        return config
    reason = _distrusted(config.file, folder)
    if not reason:
        return config
    names = ", ".join(str(pack) for pack in config.packs)
    say(
        f"rules in {names} were not loaded, since {config.file} {reason}; to run them,"
        " give --rules FOLDER or --config FILE"
    )
    return replace(config, packs=())


def named(packs: Iterable[Path]) -> str:
    r"""Return the first line of a report, which names the packs that ran; or nothing.

    >>> named([Path("ci/rules")])
    'with rules of ci/rules\n'
    """
    names = ", ".join(printable(str(_shown(pack))) for pack in packs)
    return f"with rules of {names}\n" if names else ""


def _shown(pack: Path) -> Path:
    here = Path.cwd()
    return pack.relative_to(here) if pack.is_relative_to(here) else pack


def _distrusted(file: Path, folder: Path) -> str:
    """Return why the packs of a file must not run, or nothing."""
    root = _repository(folder)
    if not file.parent.resolve().is_relative_to(root or folder.resolve()):
        return f"is outside of this {'repository' if root else 'folder'}"
    if hasattr(os, "geteuid") and file.stat().st_uid != os.geteuid():
        return "belongs to another user"
    return ""


def _repository(folder: Path) -> Path | None:
    start = folder.resolve()
    return next(
        (one for one in (start, *start.parents) if (one / ".git").exists()), None
    )
