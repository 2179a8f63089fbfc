"""Reports that go to a file: nothing that is there is lost unasked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def refuse_to_lose(file: Path, read: Sequence[Path], *, overwrite: bool) -> None:
    """Raise if writing to a file would lose what is in it, or what is read."""
    if not file.exists():
        return
    if any(other.exists() and file.samefile(other) for other in read):
        msg = f"{file} is what is read and will not be overwritten: give another name"
        raise UsageError(msg)
    if not overwrite:
        msg = f"{file} exists already: give another name, or --overwrite"
        raise UsageError(msg)


def write_report(file: Path, text: str) -> None:
    """Write a report, or say in a sentence why that cannot be."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        msg = f"{file} cannot be written: {error.strerror or error}"
        raise UsageError(msg) from None
