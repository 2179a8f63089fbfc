"""Functions run in the program's main thread, requested from a thread of ours.

torch's profiler must start in the thread that imported torch: started elsewhere first,
it made programs hang, and one abort (H200, torch 2.11).
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Callable

_Function = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


def run(work: Callable[[], None], seconds: float) -> bool:
    """Do the work in the main thread, between two of its instructions.

    Return False if it was not begun in time: the main thread waits for something. Then
    it is not done at all.
    """
    if threading.current_thread() is threading.main_thread():
        work()
        return True
    call = _Call(work)
    add: Any = ctypes.pythonapi.Py_AddPendingCall
    if add(call.function, None) != 0:
        return False
    if not call.begun.wait(seconds) and call.cancel():
        return False
    call.ended.wait()
    if call.error is not None:
        raise call.error
    return True


_waiting: set[_Call] = set()  # which the interpreter has not called yet


class _Call:
    """One piece of work, which either begins or is cancelled."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.begun = threading.Event()
        self.ended = threading.Event()
        self.error: Exception | None = None
        self._lock = threading.Lock()
        self._cancelled = False
        self.function = _Function(self._run)
        _waiting.add(self)

    def cancel(self) -> bool:
        """Return whether it will not be done: it has not begun."""
        with self._lock:
            self._cancelled = not self.begun.is_set()
            return self._cancelled

    def _run(self, _: Any) -> int:
        _waiting.discard(self)
        with self._lock:
            if self._cancelled:
                return 0
            self.begun.set()
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - raised where it was asked for
            self.error = error
        finally:
            self.ended.set()
        return 0
