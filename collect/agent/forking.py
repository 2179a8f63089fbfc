"""Forked processes of an armed process: each records its own steps.

A fork copies the hooks but no threads, and locks as they are just then, held or not. So
the copy of the recording is removed in the child, and the child begins its own, which
writes nothing before its first step: workers of a DataLoader write nothing.
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import threading
from multiprocessing import util
from typing import Any, Callable

import torch

from ..shared import status_files
from . import steps, torch_state
from .repeated_calls import RepeatedCalls

_MAKERS: tuple[tuple[Any, Callable[[], Any]], ...] = (
    (threading.Event, threading.Event),
    (type(threading.Lock()), threading.Lock),
    (type(threading.RLock()), threading.RLock),
)

_first_calls: list[Callable[[], None]] = []  # of each forked process
_registered: list[bool] = []
_ends: list[_End] = []  # multiprocessing holds them weakly


def follow(in_child: Callable[[], None]) -> None:
    """Call ``in_child`` first in each process that is forked from this one."""
    if not _registered:  # once for all recordings: it cannot be taken back
        os.register_at_fork(after_in_child=_in_child)
        _registered.append(True)
    _first_calls.append(in_child)


def _in_child() -> None:
    calls, _first_calls[:] = _first_calls[:], []
    try:
        for call in calls:
            call()
    except Exception as error:  # noqa: BLE001 - the program must continue
        status_files.mark("failed", f"{type(error).__name__}: {error}")


def leave(*parts: Any) -> None:
    """Keep what the parent made from ever being freed in this process.

    A CUDA event that is freed where CUDA cannot be used ends the process, and a plan
    that is freed writes the parent's files.
    """
    for part in parts:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))


def renew_locks(*holders: Any) -> None:
    """Replace locks and events: a thread that is not here may hold them forever."""
    for holder in holders:
        for name, value in list(vars(holder).items()):
            if isinstance(value, (steps.Source, RepeatedCalls)):
                renew_locks(value)
            for kind, make in _MAKERS:
                if isinstance(value, kind):
                    setattr(holder, name, make())


def settings_of_child(
    settings: dict[str, Any], *, parent_has_steps: bool, parent_is_traced: bool
) -> dict[str, Any] | None:
    """Return the settings with which a forked process records; None if it does not."""
    # A program that records itself writes the run file in the parent. Without steps,
    # helpers are not told from what the program is about. A profiler that ran in the
    # parent is neither running nor stopped here.
    by = settings["options"]["steps_by"]
    if "status_folder" not in settings or by == "time" or parent_is_traced:
        return None
    # Helpers call modules, too, as to transform images. They are helpers if the parent
    # makes the steps, or has the GPU, which a forked process cannot use then.
    if parent_has_steps or _cannot_use_cuda():
        if by == "forward":
            return None
        if by == "auto":
            by = "optimizer"
    options = {**settings["options"], "steps_by": by}
    return {**settings, "options": options, "forked": True}


def is_helper(settings: dict[str, Any]) -> bool:
    """Return whether a process without steps seems to work for another one."""
    if torch.utils.data.get_worker_info() is not None:
        return True
    return "forked" in settings and not torch_state.uses_cuda()


def _cannot_use_cuda() -> bool:
    """Return whether CUDA was initialised before the fork."""
    check: Any = getattr(torch.cuda, "_is_in_bad_fork", None)
    return bool(check is not None and check())


def at_end_of_fork(call: Callable[[], None]) -> None:
    """Call once when a process of multiprocessing ends, which runs no atexit.

    A fork of multiprocessing ends with ``os._exit``, after its own exit handlers.
    """
    end = _End(call)
    if multiprocessing.parent_process() is not None:
        end.register()
    else:  # if forked a moment ago, multiprocessing clears its handlers next
        util.register_after_fork(end, _End.register)
        _ends[:] = [end]


class _End:
    """The end of this process, if multiprocessing has forked it."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.process = os.getpid()

    def register(self) -> None:
        """Register with multiprocessing, unless in a process forked from this one."""
        if os.getpid() == self.process:
            util.Finalize(None, self._run, exitpriority=0)

    def _run(self) -> None:
        atexit.unregister(self.call)
        self.call()
