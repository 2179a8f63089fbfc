"""Compressed files, written atomically and only where the disk has room.

A file is written under a name that starts with a dot and renamed when it is complete,
so a killed program leaves no partial file that looks complete.
"""

from __future__ import annotations

import contextlib
import gzip
import shutil
from pathlib import Path
from typing import Iterator

MEGABYTE = 1_000_000
_SPARE = 200 * MEGABYTE  # disk space left to the program


class TooLargeError(Exception):
    """A recording exceeds what the user allows or the disk has room for."""


@contextlib.contextmanager
def compressed(file: Path) -> Iterator[gzip.GzipFile]:
    """Open ``file`` for writing with gzip; it appears once it is complete."""
    partial = file.with_name("." + file.name)
    try:
        with gzip.open(partial, "wb", compresslevel=6) as target:
            yield target
        partial.replace(file)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def free_memory() -> int | None:
    """Return the free memory of this machine, or of this container."""
    left = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path("/proc/meminfo").read_text().partition("MemAvailable:")[2]
        left.append(int(text.split()[0]) * 1024)
    with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        left.append(limit - int((group / "memory.current").read_text()))
    return min(left, default=None)


def check_room(folder: Path, needed: int) -> None:
    """Raise TooLargeError if the disk would have too little space left."""
    free = shutil.disk_usage(folder).free
    if free < needed + _SPARE:
        msg = f"only {free // MEGABYTE} MB of disk space are free"
        raise TooLargeError(msg)
