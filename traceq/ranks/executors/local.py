"""Processes of this machine, as many as its cores and its memory allow."""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from traceq.ranks.executors.tasks import WorkerDiedError
from traceq.ranks.executors.worker import DiedError, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

_THREADS = "POLARS_MAX_THREADS"  # read when a process imports Polars
# What a process that reads and lints a trace holds at its peak: traces of 4 and 44 MB
# took 129 and 301 MB. The second is chosen larger than what was measured.
_BYTES_PER_WORKER = 150 << 20
_BYTES_PER_BYTE = 4
_UNPACKED_PER_PACKED = 15  # a trace with gzip; 10 to 15 in our fixtures


class Workers(Executor):
    """An executor whose tasks run in processes, each in one at a time.

    A process that dies costs the task that it ran and no other. That task runs once
    more, in a new process, and fails if that dies too.
    """

    def __init__(self, workers: int) -> None:
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="traceq")
        self._own = threading.local()
        self._starting = threading.Lock()
        self._workers: list[Worker] = []
        self._ended = False
        self._environment = {
            _THREADS: os.environ.get(_THREADS, str(max(1, cores() // workers)))
        }

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:  # noqa: ANN401 - as Executor has it
        """Run a function in one of the processes; it must be importable there."""
        return self._threads.submit(self._run, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as Executor has it
        """End the processes; without ``wait``, also those that are at work."""
        with self._starting:
            self._ended = not wait
        self._threads.shutdown(wait=wait, cancel_futures=cancel_futures or not wait)
        for worker in self._workers:
            worker.end(at_once=not wait)

    def __exit__(self, kind: object, *_error: object) -> None:
        """End the processes at once where an error, as Ctrl-C, ended the work."""
        self.shutdown(wait=kind is None)

    def _run(self, function: Callable[..., T], args: Any, kwargs: Any) -> T:  # noqa: ANN401
        try:
            return self._worker().call(function, args, kwargs)
        except DiedError:
            return self._again(function, args, kwargs)

    def _again(self, function: Callable[..., T], args: Any, kwargs: Any) -> T:  # noqa: ANN401
        self._own.worker = None
        try:
            return self._worker().call(function, args, kwargs)
        except DiedError as error:
            self._own.worker = None
            raise WorkerDiedError from error

    def _worker(self) -> Worker:
        """Return the process of this thread."""
        worker: Worker | None = getattr(self._own, "worker", None)
        if worker is None:
            with self._starting:
                if self._ended:
                    raise WorkerDiedError
                worker = self._own.worker = Worker(self._environment)
                self._workers.append(worker)
        return worker


def workers_for(sizes: Sequence[int]) -> int:
    """Return the number of processes that may read files of these sizes at a time."""
    need = _BYTES_PER_WORKER + _BYTES_PER_BYTE * max(sizes, default=0)
    free = free_memory()
    by_memory = len(sizes) if free is None else free // need
    return max(1, min(cores(), len(sizes), by_memory))


def unpacked_size(file: Path) -> int:
    """Return about how many bytes a file has, unpacked; 0 where that is not known."""
    try:
        size = file.stat().st_size
    except OSError:
        return 0
    return size * (_UNPACKED_PER_PACKED if file.suffix in (".gz", ".zst") else 1)


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory() -> int | None:
    """Return the bytes that may still be used, of the machine or of the container."""
    limits = [_available(), _left_in_container()]
    return min((limit for limit in limits if limit is not None), default=None)


def _available() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return None


def _left_in_container() -> int | None:
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        most, used = (
            int((group / name).read_text(encoding="ascii"))
            for name in ("memory.max", "memory.current")
        )
        return max(0, most - used)
    return None
