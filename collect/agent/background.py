"""File writing in a forked process, so that the program goes on meanwhile.

torch writes a trace while it holds the interpreter's lock, so a thread would not help:
writing 100 MB stopped programs for seconds. A fork has a copy of the data to write and
shares its memory with the program: it takes 0.2 s for a process of 6 GB. It must not
use CUDA, closes everything that it inherits, and is not a child of the program, which
never sees it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import warnings
from typing import Any, Callable, Iterator

from ..shared import status_files

LONGEST_S = 600  # after which a writer ends itself
_NICE = 5
_forking: list[bool] = []  # not empty while this module forks


class Background:
    """Runs functions in forked processes; each process is listed until it ends."""

    def __init__(self) -> None:
        self._writers: dict[str, int] = {}

    def run(self, name: str, work: Callable[[], None]) -> None:
        """Run ``work`` in a process of its own; here, if there cannot be one."""
        if not available():
            work()
            return
        reader, writer = os.pipe()
        try:
            first = _fork()
        except OSError:  # too little memory, or too many processes
            os.close(reader)
            os.close(writer)
            work()
            return
        if first == 0:
            _become_writer(writer, work)
        os.close(writer)
        with contextlib.suppress(ChildProcessError):  # the program waits for all
            os.waitpid(first, 0)
        with os.fdopen(reader, "rb") as pipe:
            process = pipe.read()
        if not process.isdigit():
            work()
            return
        self._writers[name] = int(process)
        # The launcher waits for it, even if this process ends before.
        status_files.mark(f"writer-{name}", process.decode())

    def wait(self, seconds: float) -> None:
        """Wait until all of them have ended."""
        deadline = time.monotonic() + seconds
        while self._any_runs() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _any_runs(self) -> bool:
        return any(status_files.runs(writer) for writer in self._writers.values())

    def cancel(self, name: str) -> None:
        """End the process of this name, if it runs: its file is not needed."""
        writer = self._writers.pop(name, None)
        if writer is not None and status_files.runs(writer):
            with contextlib.suppress(OSError):
                os.kill(writer, signal.SIGKILL)


def available() -> bool:
    """Return whether a process can be forked here."""
    return hasattr(os, "fork") and sys.platform != "darwin"


def forks() -> bool:
    """Return whether the process that is being forked is a writer of ours."""
    return bool(_forking)


def _fork() -> int:
    _forking.append(True)
    try:
        with warnings.catch_warnings(), _signals_deferred():
            # Python 3.12 warns of threads whose locks are held in the new process: it
            # uses none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            return os.fork()
    finally:
        _forking.pop()


@contextlib.contextmanager
def _signals_deferred() -> Iterator[None]:
    """Have the program's signal handlers run afterwards, in this process alone.

    What a handler raises while Python forks is lost: it may run in one of the functions
    that are called then, whose errors are ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in that one
        return
    process = os.getpid()
    arrived: list[int] = []
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    ours = [number for number, handler in handlers.items() if callable(handler)]
    for number in ours:
        signal.signal(
            number, lambda signal_number, _frame: arrived.append(signal_number)
        )
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, handlers[number])
        if os.getpid() == process:
            for late in arrived:
                signal.raise_signal(late)


def _become_writer(pipe: int, work: Callable[[], None]) -> Any:
    """Do the work in a detached process, and exit; never returns."""
    try:
        if os.fork():
            os._exit(0)
        # A lock that another thread held when we were forked would stop us for good.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LONGEST_S)
        os.setsid()
        os.write(pipe, str(os.getpid()).encode())
        _detach()
        work()
    finally:
        os._exit(0)


def _detach() -> None:
    """Close what was inherited: a port or a pipe must not stay open because of us."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.closerange(3, max(1024, _open_files()))
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    # If memory is short, this process is what the system ends, not the program.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _open_files() -> int:
    try:
        return max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    except (OSError, ValueError):
        return 1 << 16
