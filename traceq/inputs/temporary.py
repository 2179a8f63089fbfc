"""Temporary files, made of standard input, archives and other formats."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from traceq.errors import UsageError
from traceq.formats.nsys.recognition import is_export
from traceq.inputs.display_path import DisplayPath

if TYPE_CHECKING:
    from traceq.model.trace import Trace

_folders: list[Path] = []


def stash() -> Path:
    """Return a new folder for files that are removed when traceq ends."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="traceq-"))
    except OSError as error:
        msg = f"{tempfile.gettempdir()} cannot be written: {error.strerror or error}"
        raise UsageError(msg) from None
    _folders.append(folder)
    return folder


def clean() -> None:
    """Remove these folders."""
    while _folders:
        shutil.rmtree(_folders.pop(), ignore_errors=True)


atexit.register(clean)


def chrome_trace(path: Path, trace: Trace) -> Path:
    """Return a file in Chrome's format with what a trace has, if the path's is another.

    It is for what copies or cuts the events of a file.
    """
    if not is_export(path):
        return path
    from traceq.formats.nsys.as_chrome import write_chrome  # noqa: PLC0415 - few need it

    place = stash() / "trace.json"
    with place.open("xb") as file:
        write_chrome(trace, file)
    return DisplayPath.of(place, str(path))
