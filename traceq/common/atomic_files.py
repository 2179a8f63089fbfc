"""Atomic file writes: a file is complete, or as it was before."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from traceq.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from io import BufferedWriter
    from pathlib import Path


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write files: all of them, or none if one cannot be written.

    Each is written beside its place and renamed once all are on the disk. Raises
    ``UsageError`` with the reason if that cannot be done.
    """
    beside: dict[Path, Path] = {}
    file = None
    try:
        for file, content in contents.items():
            place = file.resolve()
            if _is_device(place):
                place.write_bytes(content)
                continue
            # Known before it is written, so that half of it is removed, too.
            beside[place] = place.with_name(f".{place.name[:200]}.{os.getpid()}")
            _write_beside(place, beside[place], content)
        for place, partial in beside.items():
            partial.replace(place)
    except OSError as error:
        msg = f"{file} cannot be written: {error.strerror or error}"
        raise UsageError(msg) from None
    finally:
        for partial in beside.values():
            with suppress(OSError):
                partial.unlink(missing_ok=True)


@contextmanager
def written_whole(file: Path) -> Iterator[BufferedWriter]:
    """Let a large file be written part by part: it is there once all of it is.

    Raises ``UsageError`` with the reason if that cannot be done.
    """
    place = file.resolve()
    partial = place.with_name(f".{place.name[:200]}.{os.getpid()}")
    to = place if _is_device(place) else partial
    try:
        if place.is_dir():
            raise IsADirectoryError(None, "Is a directory")
        with to.open("wb") as stream:
            yield stream
            stream.flush()
            if to is partial:
                os.fsync(stream.fileno())
        if to is partial:
            partial.replace(place)
    except OSError as error:
        msg = f"{file} cannot be written: {error.strerror or error}"
        raise UsageError(msg) from None
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write_folder(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write the files of a folder, which is made; if one fails, nothing is left."""
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"{folder} cannot be written: {error.strerror or error}"
        raise UsageError(msg) from None
    try:
        write_files({folder / name: content for name, content in contents.items()})
    except UsageError:
        if new:
            with suppress(OSError):
                folder.rmdir()
        raise


def _is_device(file: Path) -> bool:
    """Return whether something is there that is no file, as a pipe or /dev/stdout."""
    return file.exists() and not file.is_file() and not file.is_dir()


def _write_beside(place: Path, partial: Path, content: bytes) -> None:
    if place.is_dir():
        raise IsADirectoryError(None, "Is a directory")
    with partial.open("wb") as stream:
        if place.exists():
            partial.chmod(stat.S_IMODE(place.stat().st_mode))
        stream.write(content)
        # Only then a full disk, or a quota, has shown itself on every file system.
        stream.flush()
        os.fsync(stream.fileno())
