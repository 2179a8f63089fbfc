"""Holders of the GPU's memory: ``traceq.memory``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from traceq.analysis.memory.history import History
from traceq.analysis.memory.summary import MemorySummary, summarise_memory
from traceq.api import settings
from traceq.api.result import Name, Names, Result, path, paths, several
from traceq.common.progress import collect_notices, notify
from traceq.errors import InputError, TraceqError
from traceq.formats.run import is_run, read_run
from traceq.inputs.discovery import programs
from traceq.inputs.labels import Labels, labelled
from traceq.inputs.load_recording import load_snapshot, load_trace_with_notices
from traceq.report.base.content import Content
from traceq.report.memory import content as words
from traceq.report.memory import json as memory_json
from traceq.report.memory import text as memory_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from traceq.inputs.discovery import Program
    from traceq.inputs.options import LoadOptions
    from traceq.model.trace import Trace


@dataclass(frozen=True, kw_only=True, repr=False)
class MemoryResult(Result):
    """Summaries of memory snapshots, one for each GPU."""

    summaries: tuple[MemorySummary, ...]

    def text(self, *, width: int | None = None, color: bool = False) -> str:
        """Return the text for a terminal of this width."""
        return memory_text.render(self.summaries, width=width, color=color)

    def json(self) -> str:
        """Return the JSON."""
        return memory_json.render(self.summaries)

    def contents(self) -> Sequence[Content]:
        """Return what a notebook shows."""
        if len(self.summaries) == 1:
            return [words.content(self.summaries[0])]
        return [Content("", (), (), (words.overview(self.summaries),))]


def memory(
    recording: Names | None = None,
    *,
    label: str | Iterable[str] | None = None,
    runs: Name | None = None,
    own: str | Iterable[str] | None = None,
    cache: bool = True,
) -> MemoryResult:
    """Return what holds the GPU's memory at its peak: by category, module and line.

    Args:
        recording: A path or several: memory snapshots, folders or archives of them, run
            folders, URLs. Nothing in a snapshot is executed.
        label: Labels of recordings, each as ``FILE:KEY=VALUE``.
        runs: TOML file that lists recordings with their labels.
        own: Packages, or folders of them, that are your own code, not a library.
        cache: Read and write the cache.

    Raises:
        TraceqError: The work cannot be done, for the reason in its one sentence.

    Examples:
        >>> result = memory("fixtures/twins/memory_leak/snapshot.pickle.gz")
        >>> result.summaries[0].leaks.height > 0
        True

    """
    files = paths(recording) or None
    files, labels = labelled(files, list(several(label)) or None, path(runs))
    options = settings.load_options(own=several(own), cache=cache)
    return memory_of_files(files, labels, options)


def memory_of_files(
    files: Sequence[Path], labels: Labels, options: LoadOptions
) -> MemoryResult:
    """Return the summaries of memory snapshots, as :func:`memory`."""
    with collect_notices() as notes:
        recordings, unread = programs(files, cache=options.use_cache)
        labels.refuse_unused(
            [*files, *(Path(recording.name) for recording in recordings)]
        )
        alone = len(recordings) == 1 and not unread
        results = [
            _summaries(recording, labels, options, alone=alone)
            for recording in recordings
        ]
    return MemoryResult(
        summaries=tuple(summary for each in results if each for summary in each),
        notes=tuple(notes),
        unread=unread + sum(each is None for each in results),
    )


def _summaries(
    program: Program, labels: Labels, options: LoadOptions, *, alone: bool
) -> list[MemorySummary] | None:
    """Summarise a program; none if it cannot be read and there are others."""
    try:
        summaries = list(_read(program, labels, options))
        if not summaries:
            msg = f"{program.name} is a memory snapshot in which nothing is reserved"
            raise InputError(msg)
    except TraceqError as error:
        if alone:
            raise
        notify(str(error))
        return None
    return summaries


def _read(
    program: Program, labels: Labels, options: LoadOptions
) -> Iterator[MemorySummary]:
    file, place = program.trace, Path(program.name)
    if file is None or not is_run(file):
        # Of a file that is none, it says what it is.
        snapshot = load_snapshot(
            program.snapshot or file or program.logs[0], options.own_code
        )
        trace = _trace(file, None, options) if file else None
        own_labels = labels.of(place)
        yield from summarise_memory(
            History(snapshot, trace), program.name, labels=own_labels
        )
        return
    run = read_run(file)
    own_labels = labels.of(place, run)
    recorded = [rank for rank in run.ranks if rank.memory]
    if not recorded:
        missing = [text for rank in run.ranks for text in rank.missing]
        why = "; ".join(missing) or "nothing was recorded in it"
        msg = f"{file} has no memory snapshot: {why}"
        raise InputError(msg)
    for rank in recorded:
        name = str(file) + (f", rank {rank.rank}" if len(recorded) > 1 else "")
        snapshot = load_snapshot(rank.memory or file, options.own_code, rank)
        trace = _trace(file, rank.rank, options) if rank.trace else None
        yield from summarise_memory(
            History(snapshot, trace), name, run=run, labels=own_labels
        )


def _trace(path: Path, rank: int | None, options: LoadOptions) -> Trace | None:
    """Load the trace, which has the modules; none if it cannot be read."""
    try:
        return load_trace_with_notices(path, options, rank=rank)
    except TraceqError as error:
        notify(str(error))
        return None
