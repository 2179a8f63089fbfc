"""Recording by time instead of steps, from a thread of our own.

It is for programs without steps, such as a server whose model is called from C++, and
for those in which none are detected.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from . import torch_state
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


class WindowIfNoSteps:
    """Records a few seconds of a program that works, and in which no step ends.

    Once: a recording of steps replaces it, if some are seen later.
    """

    POLL_S = 0.25
    GPU_QUIET_S = 10.0  # without a step while the GPU is given work, ...
    CPU_QUIET_S = 20.0  # ... or the processor, which may be for something else
    SLOW = 20  # times the usual step, which may be slow
    FEWEST_ALLOCATIONS = 5  # of GPU memory, between two polls: ops run
    BUSY = 0.3  # share of the time between two polls

    def __init__(self, session: Any) -> None:
        self.session = session
        self._stop = threading.Event()
        self._allocations: int | None = None
        self._processor_s = 0.0

    def install(self) -> None:
        """Start to watch."""
        threading.Thread(target=self._run, name="traceq", daemon=True).start()

    def remove(self) -> None:
        """Stop watching."""
        self._stop.set()

    def _run(self) -> None:
        worked = 0.0  # seconds of work since the last step
        state = (-1, False)
        while not self._stop.wait(self.POLL_S):
            on_gpu = torch_state.uses_cuda()
            if state != (self.session.schedule.seen, on_gpu):
                state, worked = (self.session.schedule.seen, on_gpu), 0.0
            if self._works():
                worked += self.POLL_S
            quiet = self.GPU_QUIET_S if on_gpu else self.CPU_QUIET_S
            if worked >= max(quiet, self.SLOW * self.session.usual_step_s()):
                seconds = float(self.session.options["seconds"])
                if self.session.record_window(self._stop, seconds):
                    return
                worked = 0.0

    def _works(self) -> bool:
        """Return whether the program has worked since the last look."""
        processor_s = time.process_time()
        busy = processor_s - self._processor_s >= self.BUSY * self.POLL_S
        self._processor_s = processor_s
        if not torch_state.uses_cuda():
            return busy
        before, self._allocations = self._allocations, torch_state.gpu_allocations()
        if before is None or self._allocations is None:
            return False
        return self._allocations - before >= self.FEWEST_ALLOCATIONS
