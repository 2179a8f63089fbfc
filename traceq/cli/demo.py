"""`traceq demo`: two recordings of a small program, to try the commands on."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from traceq.cli import output
from traceq.common.safe_text import printable
from traceq.errors import UsageError

_FILES = ("train.py", "trace.json.gz", "snapshot.pickle.gz", "log.txt", "origin.toml")


def command(
    folder: Annotated[
        Path, typer.Argument(help="Folder to write.", metavar="FOLDER")
    ] = Path("traceq-demo"),
) -> None:
    """Write two recordings to try the commands on, and lint the first.

    They are of a program that trained on an H200, before and after the fixes of its
    findings, with its source. A file that is already there is never overwritten: exits
    2 if one differs, else 0, whatever lint finds.
    """
    from traceq.api.lint import lint

    _write(folder)
    before, after = (_quoted(folder / name) for name in ("before", "after"))
    output.write(
        f"{before} and {after}: a program on an H200, before and after its fixes\n\n"
        f"$ traceq lint {before} --root {before}\n"
    )
    width, color = output.screen(to_file=False)
    result = lint([folder / "before"], root=folder / "before")
    output.write(result.text(width=width, color=color))
    output.write(
        "\nNext:\n"
        f"  traceq report {before} -o {_quoted(folder / 'report.html')}\n"
        f"  traceq diff {before} {after}\n"
        "  traceq collect -- python train.py    (a program of yours)\n"
    )


def _quoted(path: Path) -> str:
    """Return a path as a shell takes it."""
    return printable(quote(str(path)))


def _write(folder: Path) -> None:
    """Copy the recordings, unless they are there."""
    from traceq.common.atomic_files import write_folder
    from traceq.common.locations import demo_recordings

    recordings = {
        folder / name: {file: (recording / file).read_bytes() for file in _FILES}
        for name, recording in demo_recordings().items()
    }
    for place, contents in recordings.items():
        for name, content in contents.items():
            file = place / name
            if file.exists() and (not file.is_file() or file.read_bytes() != content):
                msg = f"{file} exists, and is not the demo's: give another folder"
                raise UsageError(msg)
    for place, contents in recordings.items():
        missing = {
            name: one for name, one in contents.items() if not (place / name).exists()
        }
        write_folder(place, missing)
