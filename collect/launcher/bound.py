"""Lifetime of the program, bound to its launcher: it does not outlive it."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def to_parent() -> Callable[[], None] | None:
    """Return a function for a child to call first, so that it ends with this process.

    None where the system has no such thing. The signal is SIGTERM, at which launchers
    of jobs end their own children.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        import ctypes  # noqa: PLC0415 - where it is needed

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None
    parent = os.getpid()

    def bind() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was killed before
            os._exit(1)

    return bind


def at_terminal() -> bool:
    """Return whether this process is one of those that a terminal sends signals to."""
    try:
        terminal = os.open(os.ctermid(), os.O_RDONLY | getattr(os, "O_NOCTTY", 0))
    except (AttributeError, OSError):
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
