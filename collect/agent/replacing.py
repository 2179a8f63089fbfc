"""Programs that replace themselves by exec, such as to restart with other libraries.

Exit handlers do not run then. The recorded data is written before, and the new program
begins its own recording.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Callable, Mapping

from ..shared import status_files
from .wrapping import wrap

_BOOTSTRAP = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bootstrap"
)


class _Watch:
    """The recording of this process, and how to begin another."""

    def __init__(self, end: Callable[[], bool], begin: Callable[[], None]) -> None:
        self.end = end
        self.begin = begin
        self.process = os.getpid()


_watch: list[_Watch] = []


def follow(end: Callable[[], bool], begin: Callable[[], None]) -> None:
    """Call ``end`` before exec, and ``begin`` if it ended something and exec failed."""
    if not _watch:  # all other functions of os that exec call these two
        wrap(os, "execv", _exec)
        wrap(os, "execve", _exec)
    _watch[:] = [_Watch(end, begin)]


def remove_files(folder: Path, name: str) -> None:
    """Remove the files of a recording that has nothing in it."""
    for file in folder.glob(f"{name}.*"):
        with contextlib.suppress(OSError):
            file.unlink()


def _exec(method: Any, *args: Any, **kwargs: Any) -> Any:
    watch, ended = _watch[0], None
    if watch.process == os.getpid():
        with contextlib.suppress(Exception):  # of an environment that is none
            _mark_unseen(kwargs.get("env", args[2] if args[2:] else os.environ))
        ended = _guarded(watch.end)
    try:
        return method(*args, **kwargs)
    finally:  # it comes back only if it failed
        if ended:
            _guarded(watch.begin)


def _guarded(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - the program must continue
        status_files.mark("failed", f"{type(error).__name__}: {error}")
        return None


def _mark_unseen(environment: Mapping[Any, Any]) -> None:
    """Tell the launcher if the new program does not load the recorder."""
    results = {os.fsdecode(key): os.fsdecode(environment[key]) for key in environment}
    paths = results.get("PYTHONPATH", "").split(os.pathsep)
    if status_files.VARIABLE not in results or _BOOTSTRAP not in paths:
        status_files.mark(status_files.UNSEEN)
