"""Refusal of files that change while they are read: the data would be of no version."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from traceq.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def unchanged(path: Path, file: IO[bytes] | None = None) -> Iterator[None]:
    """Raise ``InputError`` at the end if the file is not what it was at the beginning.

    An open ``file`` stays whole when another takes its path; without one, the path has
    to name the same file all the time. A pipe always changes.
    """
    before = _identity(path, file)
    yield
    if _identity(path, file) != before:
        msg = (
            f"{path} changed while it was read: wait until it is written, then read it"
            " again"
        )
        raise InputError(msg)


def _identity(path: Path, file: IO[bytes] | None) -> tuple[int, ...] | None:
    try:
        status = os.fstat(file.fileno()) if file else path.stat()
    except OSError:  # there is no file, which whoever reads it will say
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
