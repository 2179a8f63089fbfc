"""Exit without interpreter teardown.

Python takes apart every module and table before it ends, which takes as long as a tenth
of a small lint. The system frees all of it anyway.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing takes milliseconds that could be interrupted
if TYPE_CHECKING:
    from collections.abc import Callable


class _State:
    status: int | None = None  # the exit status, where it is known


def noting(run: Callable[[], None]) -> None:
    """Call ``run``, and note the exit status with which it ends."""
    _State.status = None
    try:
        run()
    except SystemExit as end:
        if isinstance(end.code, int):
            _State.status = end.code
        raise
    _State.status = 0


def at_once() -> None:
    """End the process, after all else that is called when Python ends.

    What cannot be written, and a status that is not known, are left to Python.
    """
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return
    if _State.status is not None:
        os._exit(_State.status)
