"""No steps: record a few seconds of the program from a thread of our own.

For programs without steps, such as a server whose model is called from C++.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from .steps import Source


class TimeSteps(Source):
    """Waits for the warm-up in seconds, then traces, then records memory history."""

    of = "seconds"

    PATIENCE_S = 600.0

    def __init__(self, session: Any) -> None:
        super().__init__(session.boundary)
        self.session = session
        self._stop = threading.Event()

    def install(self) -> None:
        threading.Thread(target=self._run, name="traceq", daemon=True).start()

    def remove(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        options = self.session.options
        self._stop.wait(float(options["warmup"]))
        began = time.monotonic()
        while self.session.others.active and not self._stop.is_set():
            if time.monotonic() - began > self.PATIENCE_S:
                return
            self._stop.wait(1.0)
        if not self._stop.is_set():
            self.session.record_seconds(self._stop, float(options["seconds"]))
