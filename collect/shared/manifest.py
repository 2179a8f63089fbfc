"""Manifests: facts about a rank, written by its agent, and about the run.

README.md documents every key: change both together, and FORMAT when a reader of the
old format would misread the new one.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
from pathlib import Path
from typing import Any

from . import status_files

FORMAT = 1
OTHER_THREADS = "several threads make steps: those of one were recorded"


def now() -> str:
    """Return the time of day, in UTC, to the millisecond."""
    moment = dt.datetime.now(dt.timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def write(file: Path, content: dict[str, Any]) -> None:
    """Write a manifest atomically."""
    text = json.dumps(content, indent=1, ensure_ascii=False, default=str)
    status_files.replace(file, text.encode("utf-8", "replace") + b"\n")


def read(file: Path) -> dict[str, Any]:
    """Return a manifest; empty if the file is not one."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def read_list(file: Path) -> list[str] | None:
    """Return the words of a file that holds a list; None if there is no such file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return [str(entry) for entry in content] if isinstance(content, list) else None


def claim(folder: Path, rank: int) -> str:
    """Reserve a name for this process's files that no other process has.

    That is ``rank-0``, or ``rank-0-2`` if another process of rank 0 came first, as
    when a program without ranks starts several processes that train.
    """
    for number in range(1, 1000):
        name = f"rank-{rank}" if number == 1 else f"rank-{rank}-{number}"
        with contextlib.suppress(FileExistsError):
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
            os.close(os.open(folder / f"{name}.json", flags, 0o644))
            return name
    msg = f"too many processes of rank {rank}"
    raise RuntimeError(msg)
