"""Ctrl-C: one line and exit status 130, at whatever moment it comes.

The handler is set once, before the rest is imported, and only its state changes: Polars
puts a handler of its own in front of it, which setting another would remove.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # typing takes milliseconds that could be interrupted
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_STATUS = 130
_LINE = "traceq: interrupted\n"


class _State:
    came = False  # whether there was an interruption
    reported = False
    can_raise = False  # whether there is somebody to catch it


def watch() -> None:
    """From now on, end at an interruption; not where the shell has it ignored."""
    _State.came = _State.reported = _State.can_raise = False
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        try:
            signal.signal(signal.SIGINT, _interrupted)
        except ValueError:  # not the main thread, which alone is interrupted
            return


def call(run: Callable[[], None]) -> None:
    """Call ``run``, which an interruption may end after it has cleaned up."""
    try:
        try:
            _State.can_raise = True
            run()
        finally:
            _State.can_raise = False
    except KeyboardInterrupt:
        _State.came = True
    finally:
        # Even if a library made another error of it, or ignored it.
        if _State.came:
            _say()
            sys.exit(_STATUS)


def came() -> bool:
    """Return whether there was an interruption."""
    return _State.came


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    _State.came = True
    if not _State.can_raise:
        _say()
        os._exit(_STATUS)
    _State.can_raise = False
    raise KeyboardInterrupt


def _say() -> None:
    if not _State.reported:
        _State.reported = True
        try:
            sys.stderr.write(_LINE)
        except OSError:  # there is nobody to tell
            return
