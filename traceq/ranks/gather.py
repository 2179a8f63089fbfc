"""Digests of a job's ranks, by any executor: one task per trace."""

from __future__ import annotations

import os
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

from traceq.inputs.display_path import Url
from traceq.ranks.digest import Digest, digest_of
from traceq.ranks.executors.local import Workers, unpacked_size, workers_for
from traceq.ranks.executors.tasks import Failed, Task, run_all
from traceq.ranks.notices import Unread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from traceq.inputs.options import LoadOptions

# Below this many unpacked bytes of traces, processes take longer to start than to read.
_SMALL = 100_000_000


class InProcess(Executor):
    """Runs what is submitted at once, in this process."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401 - an executor's
        """Run it, and return what it returned or raised."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future


def digest_tasks(
    traces: Sequence[tuple[Path, int | None]],
    options: LoadOptions,
    *,
    findings: bool = True,
) -> list[Task]:
    """Return a task for each trace, or rank of a run folder.

    A process elsewhere has another working directory, and fetches URLs itself.
    """
    return [
        Task(
            str(path) if rank is None else f"{path}, rank {rank}",
            (_anywhere(path), rank, options, findings, str(path)),
            unpacked_size(path),
        )
        for path, rank in traces
    ]


def _anywhere(path: Path) -> str:
    return path.url if isinstance(path, Url) else os.fspath(path.absolute())


def local_executor(tasks: Sequence[Task]) -> Executor:
    """Return processes of this machine, or this one where there is little to do."""
    sizes = [task.size for task in tasks]
    workers = workers_for(sizes)
    if workers == 1 or sum(sizes) < _SMALL:
        return InProcess()
    return Workers(workers)


def gather(
    tasks: Sequence[Task],
    executor: Executor,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Digest], list[Unread]]:
    """Return the digests, in the order of the tasks, and what could not be read."""
    results = run_all(executor, digest_of, tasks, progress)
    digests = [Digest(result) for result in results if isinstance(result, bytes)]
    unread = [
        Unread(result.name, result.why)
        for result in results
        if isinstance(result, Failed)
    ]
    return digests, unread
