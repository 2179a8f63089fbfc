"""Standard streams: a closed or full stream is not an error of traceq."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing takes milliseconds that could be interrupted
if TYPE_CHECKING:
    from typing import TextIO


def open_closed() -> None:
    """Open the null device in place of each stream that the shell has closed.

    It gets the lowest free number, which is the stream's own: no file that is opened
    later is taken for it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


def discard(stream: TextIO) -> None:
    """Drop what cannot be written: Python would complain again when it ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
