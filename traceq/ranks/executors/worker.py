"""A process that runs one function after the other for the process that started it.

It is started as ``python -c`` rather than by multiprocessing, which would run the main
script of its parent again, and needs shared memory that containers may lack.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_START = (
    "import sys; sys.path[:] = sys.argv[1:];"
    " from traceq.ranks.executors.worker import serve"
)


class DiedError(Exception):
    """The process ended before it answered."""


class Worker:
    """A process and the pipes to it; it ends with its parent."""

    def __init__(self, environment: dict[str, str]) -> None:
        # Closed pipes end it; a terminal's Ctrl-C is its parent's affair.
        self._process = subprocess.Popen(  # noqa: S603 - this very Python
            [sys.executable, "-c", f"{_START}; serve()", *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        self._lock = threading.Lock()

    def call(self, function: Callable[..., T], args: Any, kwargs: Any) -> T:  # noqa: ANN401
        """Return the result of a function called there, or raise its exception."""
        pipe_in, pipe_out = self._process.stdin, self._process.stdout
        with self._lock:
            try:
                pickle.dump((function, args, kwargs), pipe_in)  # type: ignore[arg-type] # a pipe
                pipe_in.flush()  # type: ignore[union-attr] # a pipe
                # Not a stranger's: it comes from our own process.
                fine, reply = pickle.load(pipe_out)  # type: ignore[arg-type] # noqa: S301
            except (OSError, EOFError, pickle.UnpicklingError) as error:
                raise DiedError from error
        if not fine:
            raise reply
        result: T = reply
        return result

    def end(self, *, at_once: bool) -> None:
        """End the process, after what it is doing or at once."""
        if at_once:
            self._process.kill()
        with self._lock:
            for pipe in (self._process.stdin, self._process.stdout):
                with contextlib.suppress(OSError):  # what it never read
                    pipe.close()  # type: ignore[union-attr] # a pipe
            self._process.wait()


def serve() -> None:
    """Answer calls until the parent closes the pipe or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    calls = sys.stdin.buffer
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print
        while True:
            try:
                # Not a stranger's: it comes from the process that started this one.
                function, args, kwargs = pickle.load(calls)  # noqa: S301
            except EOFError:
                return
            _answer(answers, *_called(function, args, kwargs))


def _called(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[bool, Any]:  # noqa: ANN401
    try:
        return True, function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - it is raised where the call came from
        return False, error


def _answer(pipe: Any, fine: bool, reply: Any) -> None:  # noqa: ANN401, FBT001
    try:
        content = pickle.dumps((fine, reply))
        pickle.loads(content)  # noqa: S301 - whether it can be read
    except Exception:  # noqa: BLE001 - an exception that cannot be pickled
        error = RuntimeError(f"{type(reply).__name__}: {reply}")
        content = pickle.dumps((False, error))
    pipe.write(content)
    pipe.flush()
