"""Hook in every Python process of the program: waits until it imports torch.

It never imports torch itself and never raises into the program. Everything that needs
torch is in session.py and below, which is imported after torch.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Callable

from ..shared import own_numbers, status_files
from . import stand_in
from .after_import import AfterImport


def arm() -> None:
    """Start when the program imports torch."""
    status_files.mark("python")
    own_numbers.start(str(status_files.settings().get("folder", "")))
    stand_in.install()
    AfterImport("torch", _begin).wait()


def _begin() -> None:
    try:
        status_files.mark("torch")
        room = "..trial.session" if "try" in status_files.settings() else ".session"
        begin: Callable[[], None] = import_module(room, __package__).begin
        begin()
    except Exception as error:  # noqa: BLE001 - the program must continue
        status_files.mark("failed", f"{type(error).__name__}: {error}")
        if os.environ.get("TRACEQ_TRACEBACK"):
            sys.excepthook(type(error), error, error.__traceback__)
