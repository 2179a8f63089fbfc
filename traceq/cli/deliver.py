"""Delivery of reports to standard output or a file, without unrequested overwriting."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from traceq.cli import output
from traceq.common.atomic_files import write_files
from traceq.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from traceq.cli.options import TableFormat


class TableReport(Protocol):
    """A report on something that is a table first of all: a module of functions."""

    def text(self, shown: Any, /, *, width: int | None, color: bool) -> str:  # noqa: ANN401
        """Return it for a terminal."""

    def json(self, shown: Any, /) -> str:  # noqa: ANN401 - what each is about
        """Return it for programs."""

    def csv(self, shown: Any, /) -> str:  # noqa: ANN401
        """Return its rows for a sheet."""

    def markdown(self, shown: Any, /) -> str:  # noqa: ANN401
        """Return it for a pull request or a note."""


def renderer(place: str) -> Callable[..., str]:
    """Return a function of a report, as ``lint.html:render``, imported now.

    A page takes longer to import than a small trace to read: only who asks waits.
    """
    module, _, function = place.partition(":")
    return getattr(import_module(f"traceq.report.{module}"), function)


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


def deliver_table(
    report: TableReport,
    shown: Any,  # noqa: ANN401 - what the report is about
    form: TableFormat,
    file: Path | None,
) -> None:
    """Print or write a report in the form that was asked for."""
    if form.value == "text":
        width = None if file else output.width()
        color = not file and output.color()
        deliver(report.text(shown, width=width, color=color), file)
    else:
        write = {"json": report.json, "csv": report.csv, "markdown": report.markdown}
        deliver(write[form.value](shown), file)


def write_file(file: Path, text: str) -> None:
    """Write a file whole; raise ``UsageError`` if that cannot be done."""
    write_files({file: text.encode()})


def make_folder(folder: Path) -> None:
    """Make a folder, unless it exists; raise ``UsageError`` if that cannot be done."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        msg = f"{folder} cannot be made: {error.strerror or error}"
        raise UsageError(msg) from None
