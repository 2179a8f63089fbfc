"""Facts that are known only after a file was written, added to a rank's manifest.

A forked process writes the files, so that the program goes on meanwhile. It writes the
facts, such as the size, to a file of its own; the next reader or writer of the manifest
adds them: the agent, or the launcher when the program has ended.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from . import manifest

_LISTS = ("missing", "notes", "sources")


def path(folder: Path, name: str, what: str) -> Path:
    """Return the file of what is added to ``what`` of the rank ``name``."""
    return folder / f".{name}.{what}.written"


def leave(folder: Path, name: str, what: str, facts: dict[str, Any]) -> None:
    """Leave facts for a manifest; ``facts`` has the keys of the manifest."""
    manifest.write(path(folder, name, what), facts)


def add(rank: dict[str, Any], folder: Path) -> bool:
    """Add what was left for a rank to its manifest; return whether there was any."""
    files = sorted(folder.glob(f".{rank.get('name')}.*.written"))
    for file in files:
        try:
            facts = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        for key, value in facts.items():
            _add(rank, key, value)
    return bool(files)


def _add(rank: dict[str, Any], key: str, value: Any) -> None:
    if key in _LISTS:
        entries = rank.setdefault(key, [])
        entries += [entry for entry in value if entry not in entries]
    elif value is None:  # it could not be written
        rank[key] = None
    elif isinstance(rank.get(key), dict):
        rank[key].update(value)


def remove(folder: Path, name: str) -> None:
    """Remove what was left for a rank, once its manifest has it."""
    for file in folder.glob(f".{name}.*.written"):
        with contextlib.suppress(OSError):
            file.unlink()
