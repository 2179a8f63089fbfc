"""Files that are written whole or not at all, and only where there is room.

A file is written under a name that begins with a dot and is renamed when it is whole,
so a program that is killed leaves no half file that looks like a whole one.
"""

from __future__ import annotations

import contextlib
import gzip
import shutil
from pathlib import Path
from typing import Iterator

MEGABYTE = 1_000_000
_SPARE = 200 * MEGABYTE  # of disk, left to the program


class TooLargeError(Exception):
    """What was recorded is larger than the user allows, or than the disk has room."""


@contextlib.contextmanager
def compressed(file: Path) -> Iterator[gzip.GzipFile]:
    """Open ``file`` to write it gzipped; it appears when all was written."""
    half = file.with_name("." + file.name)
    try:
        with gzip.open(half, "wb", compresslevel=6) as target:
            yield target
        half.replace(file)
    finally:
        with contextlib.suppress(OSError):
            half.unlink()


def check_room(folder: Path, needed: int) -> None:
    """Raise where the disk would have too little room left."""
    free = shutil.disk_usage(folder).free
    if free < needed + _SPARE:
        msg = f"the disk has {free // MEGABYTE} MB free, too little"
        raise TooLargeError(msg)
