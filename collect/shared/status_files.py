"""Status files: agents leave small files in a folder, and the launcher reads them.

Files need no connection, outlive the process that wrote them, and work across any
number of processes in between, such as torchrun's.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from typing import Any

VARIABLE = "TRACEQ_COLLECT"  # one variable, JSON: all that the agents need to know
UNSEEN = "replaced-unseen"  # a process replaced itself by one that is not recorded


def settings() -> dict[str, Any]:
    """Return the launcher's settings for the agents; empty outside a recorded run."""
    try:
        content = json.loads(os.environ.get(VARIABLE, "{}"))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def mark(name: str, text: str = "") -> None:
    """Write the status file ``name``; does nothing where it cannot be written."""
    folder = settings().get("status_folder")
    if folder:
        with contextlib.suppress(OSError):
            replace(pathlib.Path(folder, name), text.encode("utf-8", "replace"))


def read(pattern: str, beginning: str) -> list[str]:
    """Return the names of matching files whose text starts with ``beginning``."""
    folder = settings().get("status_folder")
    results = []
    for file in pathlib.Path(folder).glob(pattern) if folder else ():
        with contextlib.suppress(OSError):
            if file.read_text().startswith(beginning):
                results.append(file.name)
    return results


def runs(process: int) -> bool:
    """Return whether a process of this machine has not ended."""
    try:
        text = pathlib.Path("/proc", str(process), "stat").read_text()
        return text.rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        pass
    if os.path.isdir("/proc/self"):
        return False
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


def replace(file: pathlib.Path, content: bytes) -> None:
    """Write a file atomically: a reader sees the old content or the new."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        partial.write_bytes(content)
        partial.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
