"""Reports of Nsight Systems, exported by ``nsys`` where that is installed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

from traceq.errors import InputError
from traceq.formats.strangers import REPORTS
from traceq.inputs.display_path import DisplayPath
from traceq.inputs.temporary import stash

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_POLL_S = 0.2
# What was exported already: commands look at a path more than once.
_databases: dict[tuple[Path, int, int], Path] = {}
_LONGEST_REASON = 300


def is_report(path: Path) -> bool:
    """Return whether a file is a report that only ``nsys`` can read."""
    return path.name.lower().endswith(REPORTS) and path.is_file()


def exported(report: Path, progress: Callable[[int, int], None] | None = None) -> Path:
    """Return a report as an SQLite database in a temporary folder.

    Raises ``InputError`` with the command to run where ``nsys`` is not installed.
    """
    status = report.stat()
    key = (report.absolute(), status.st_mtime_ns, status.st_size)
    if (known := _databases.get(key)) and known.is_file():
        return known
    program = shutil.which("nsys")
    if program is None:
        by_hand = ["nsys", "export", "--type", "sqlite", "--output"]
        command = shlex.join([*by_hand, f"{report.stem}.sqlite", str(report)])
        msg = (
            f"{report} is a report of Nsight Systems, and nsys is not on the PATH: run"
            f" {command} where it is installed, and give the .sqlite"
        )
        raise InputError(msg)
    database = stash() / f"{report.stem}.sqlite"
    arguments = ["export", "--type", "sqlite", "--output", str(database)]
    _run([program, *arguments, str(report.absolute())], report, database, progress)
    _databases[key] = DisplayPath.of(database, str(report))
    return _databases[key]


def _run(
    command: list[str],
    report: Path,
    database: Path,
    progress: Callable[[int, int], None] | None,
) -> None:
    try:
        process = subprocess.Popen(  # noqa: S603 - the user's own nsys
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        msg = f"{command[0]} cannot be run: {error.strerror or error}"
        raise InputError(msg) from None
    with process:
        while True:
            try:
                _, written = process.communicate(timeout=_POLL_S)
                break
            except subprocess.TimeoutExpired:
                if progress and database.exists():
                    progress(database.stat().st_size, 0)
            except BaseException:
                process.kill()
                raise
    if process.returncode or not database.is_file():
        lines = written.decode(errors="replace").strip().splitlines()
        reason = lines[-1][:_LONGEST_REASON] if lines else "it gave no reason"
        msg = f"{report} cannot be exported by nsys: {reason}"
        raise InputError(msg)
