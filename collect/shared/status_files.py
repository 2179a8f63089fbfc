"""How the agents tell the launcher where they are: small files in a folder of its own.

Files need no connection, survive the end of a process, and work through any number of
processes in between, such as torchrun's.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from typing import Any

VARIABLE = "TRACEQ_COLLECT"  # one variable, JSON: all that the agents must know


def settings() -> dict[str, Any]:
    """Return what the launcher told the agents; empty outside of a recorded run."""
    try:
        found = json.loads(os.environ.get(VARIABLE, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def mark(name: str, text: str = "") -> None:
    """Leave the sign ``name`` for the launcher; a sign that cannot be left is not."""
    folder = settings().get("control")
    if folder:
        with contextlib.suppress(OSError):
            replace(pathlib.Path(folder, name), text.encode())


def read(pattern: str, beginning: str) -> list[str]:
    """Return the signs of that name whose text begins so."""
    folder = settings().get("control")
    found = []
    for file in pathlib.Path(folder).glob(pattern) if folder else ():
        with contextlib.suppress(OSError):
            if file.read_text().startswith(beginning):
                found.append(file.name)
    return found


def replace(file: pathlib.Path, content: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a half."""
    half = file.with_name(f".{file.name}.{os.getpid()}")
    half.write_bytes(content)
    half.replace(file)
