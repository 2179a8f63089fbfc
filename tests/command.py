"""The command line as its users call it, and what it answered."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING
from unittest.mock import patch

from traceq.cli import fast_exit, main

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Answer:
    """What a command wrote, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def traceq(*arguments: str | Path, width: int | None = None) -> Answer:
    """Call the command line in this process; without a width, as into a pipe."""
    out, err = io.StringIO(), io.StringIO()
    environment = {key: os.environ[key] for key in os.environ if key != "COLUMNS"}
    if width:
        environment["COLUMNS"] = str(width)
    argv = ["traceq", *map(str, arguments)]
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        patch.object(sys, "argv", argv),
        patch.dict("os.environ", environment, clear=True),
    ):
        handler = signal.getsignal(signal.SIGINT)
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0
        else:
            status = 0
        finally:
            # A process ends with its own.
            signal.signal(signal.SIGINT, handler)
            atexit.unregister(fast_exit.at_once)
    return Answer(status, out.getvalue(), err.getvalue())
