"""Reports on standard output or in a file, where nothing is lost unasked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.cli import output
from traceq.errors import UsageError
from traceq.files import write_files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def refuse_to_lose(file: Path | None, read: Sequence[Path], *, overwrite: bool) -> None:
    """Raise if writing to a file would lose its content, or what is read."""
    if file is None or not file.exists():
        return
    if any(other.exists() and file.samefile(other) for other in read):
        msg = f"{file} is an input and will not be overwritten: give another name"
        raise UsageError(msg)
    if not overwrite:
        msg = f"{file} exists already: give another name, or --overwrite"
        raise UsageError(msg)


def deliver(text: str, file: Path | None) -> None:
    """Print a report, or write it to a file if one is given."""
    if file is None:
        output.write(text)
    else:
        write_file(file, text)


def write_file(file: Path, text: str) -> None:
    """Write a file whole; raise ``UsageError`` if that cannot be done."""
    write_files({file: text.encode()})
