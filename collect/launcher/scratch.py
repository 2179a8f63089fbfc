"""A scratch copy of the working directory, for runs that the user did not ask for."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from typing import Iterator

MOST_BYTES = 2_000_000_000  # that are copied; a larger folder is used as it is
# Loggers that would send or store what a run of ours prints.
QUIET = {
    "WANDB_MODE": "disabled",
    "MLFLOW_TRACKING_URI": "file:///dev/null",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


class Scratch:
    """A copy of the working directory, removed at the end."""

    def __init__(self) -> None:
        self.origin = os.getcwd()
        self.folder: str | None = None
        self._place: str | None = None

    def make(self) -> str:
        """Copy the folder, unless it is too large; return what was done, in words."""
        quiet = "loggers are disabled, and what it prints is not shown"
        if _size(self.origin) > MOST_BYTES:
            return (
                f"the program runs again, in its own folder: too large to copy; {quiet}"
            )
        self._place = tempfile.mkdtemp(prefix="traceq-scratch-")
        self.folder = os.path.join(self._place, os.path.basename(self.origin) or "root")
        shutil.copytree(
            self.origin,
            self.folder,
            symlinks=True,
            ignore=shutil.ignore_patterns("traceq-runs"),
            ignore_dangling_symlinks=True,
        )
        return f"the program runs again, in a copy of its folder; {quiet}"

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Work in the copy, with the output hidden."""
        with contextlib.ExitStack() as stack:
            if self.folder is not None:
                stack.callback(os.chdir, self.origin)
                os.chdir(self.folder)
            nothing = os.open(os.devnull, os.O_WRONLY)
            stack.callback(os.close, nothing)
            sys.stdout.flush()
            output = os.dup(1)
            stack.callback(os.close, output)
            stack.callback(os.dup2, output, 1)
            os.dup2(nothing, 1)
            yield

    def remove(self) -> None:
        """Remove the copy."""
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)


def _size(folder: str) -> int:
    """Return the bytes of a folder, or more than the limit as soon as it is passed."""
    total = 0
    for place, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
        if total > MOST_BYTES:
            break
    return total
