"""Copies of the source files of the program's own functions that were traced."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Any, Mapping

from ..shared import redact

FOLDER = "sources"
LARGEST = 1_000_000  # bytes, of a file
MOST = 10_000_000  # of all files
_STARTED = time.time()  # the program imports torch
_INSTALLED = ("site-packages", "dist-packages")


def copy(
    files: Mapping[str, str], folder: Path
) -> tuple[list[dict[str, Any]], list[str]]:
    """Copy source files of the program's own into a folder; return what was copied.

    ``files`` has paths by the names that the trace has for them. Files outside of the
    program's folder and repository, and installed ones, are not the program's own. The
    second result says which of its own are left out, and why.
    """
    copied: list[dict[str, Any]] = []
    notes: list[str] = []
    left = MOST
    for name, path in sorted(files.items()):
        with contextlib.suppress(OSError, ValueError):
            file = Path(path).resolve()
            base = _base(file)
            if base is None:
                continue
            content, why = _content(file, min(left, LARGEST))
            if why:
                notes.append(f"{file.relative_to(base)} was not copied: {why}")
                continue
            left -= len(content)
            copied.append(_write(content, folder, name, file.relative_to(base)))
    return copied, notes


def _base(file: Path) -> Path | None:
    """Return the program's folder that a file is in, the repository if there is one."""
    parts = {*file.parts}
    if file.suffix != ".py" or parts & {*_INSTALLED}:
        return None
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    folders = [Path(main).resolve().parent if main else Path.cwd(), Path.cwd()]
    for folder in folders:
        if folder in (Path(folder.anchor), Path.home()):
            continue
        base = _repository(folder) or folder
        if base in file.parents:
            return base
    return None


def _repository(folder: Path) -> Path | None:
    for path in (folder, *folder.parents):
        if (path / ".git").exists() and path not in (Path(path.anchor), Path.home()):
            return path
    return None


def _content(file: Path, most: int) -> tuple[bytes, str]:
    """Return the content of a file, or the reason why it is not copied."""
    status = file.stat()
    if status.st_size > most:
        return b"", "it is too large"
    if status.st_mtime > _STARTED:
        return b"", "it changed after the program started"
    content = file.read_bytes()
    if redact.in_source(content.decode("utf-8")):
        return b"", "it seems to contain a credential"
    return content, ""


def _write(content: bytes, folder: Path, name: str, path: Path) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    folder.mkdir(exist_ok=True)
    target = folder / f"{digest[:16]}.py"
    if not target.exists():  # another rank has the same
        partial = folder / f".{target.name}.{os.getpid()}"
        partial.write_bytes(content)
        partial.replace(target)
    return {
        # A name with the folders of this machine is not for the run folder.
        "name": path.as_posix() if os.path.isabs(name) else name,
        "path": path.as_posix(),
        "file": target.name,
        "sha256": digest,
        "bytes": len(content),
    }
