"""One task per file, on any executor; a failed task costs only its file."""

from __future__ import annotations

from concurrent.futures import Executor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from traceq.errors import TraceqError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


@dataclass(frozen=True)
class Task:
    """One call of the function: its name and arguments."""

    name: str
    """Name of the task, for its user."""
    arguments: tuple[object, ...]
    size: int = 0
    """Amount of work, in bytes; the largest tasks are started first."""


@dataclass(frozen=True)
class Failed:
    """A task that has no result."""

    name: str
    why: str


class WorkerDiedError(Exception):
    """The process that ran a task died, and the one that ran it again too."""


def run_all(
    executor: Executor,
    function: Callable[..., T],
    tasks: Sequence[Task],
    progress: Callable[[int, int], None] | None = None,
) -> list[T | Failed]:
    """Return the result of each task, in their order, whenever and wherever it ran."""
    order = sorted(range(len(tasks)), key=lambda place: -tasks[place].size)
    places = {
        executor.submit(function, *tasks[place].arguments): place for place in order
    }
    results: dict[int, T | Failed] = {}
    for future in as_completed(places):
        place = places[future]
        error = future.exception()
        results[place] = (
            future.result() if error is None else Failed(tasks[place].name, _why(error))
        )
        if progress is not None:
            progress(len(results), len(tasks))
    return [results[place] for place in range(len(tasks))]


def _why(error: BaseException) -> str:
    if isinstance(error, TraceqError):
        return str(error)
    # Dask says so with an exception of its own, which need not be installed here.
    if isinstance(error, WorkerDiedError) or type(error).__name__ == "KilledWorker":
        return (
            "the process that read it died, also when it was read again: it may have"
            " run out of memory"
        )
    return f"traceq crashed: {type(error).__name__}: {error}"
