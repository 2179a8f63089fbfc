"""Loading of jobs of many ranks from the paths that a user names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.common.progress import counting
from traceq.errors import InputError, TraceqError, UsageError
from traceq.formats.run import is_run
from traceq.inputs.discovery import discover, several_runs, traces
from traceq.inputs.display_path import Url
from traceq.inputs.load_recording import ranks_of
from traceq.ranks.analysis import analyse
from traceq.ranks.executors.dask import connect
from traceq.ranks.gather import digest_tasks, gather, local_executor
from traceq.ranks.job import assemble

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from traceq.inputs.options import LoadOptions
    from traceq.ranks.analysis import Analysis


def is_job(path: Path) -> bool:
    """Return whether a path is a folder with the traces of several ranks."""
    if not path.is_dir():
        return False
    try:
        if is_run(path):
            return len(ranks_of(path)) > 1
        inside = discover(path, say=lambda _: None)
    except TraceqError:
        return False
    # Several run folders are several runs, not the ranks of one.
    return (
        sum(program.trace is not None and program.trace.is_file() for program in inside)
        > 1
    )


def ranks_in(paths: Sequence[Path], *, cache: bool) -> list[tuple[Path, int | None]]:
    """Return the traces of paths, and of which rank of a run folder each is."""
    # Files on other machines are fetched where they are read.
    remote = [path for path in paths if isinstance(path, Url)]
    here = [path for path in paths if not isinstance(path, Url)]
    for path in here:
        if runs := several_runs(path):
            msg = f"{path} has {len(runs)} runs in it: give one, as {runs[-1]}"
            raise UsageError(msg)
    local = traces(here, cache=cache)[0] if here else []
    ranks = [(path, rank) for path in local for rank in ranks_of(path)]
    return ranks + [(path, None) for path in remote]


def analysed(
    paths: Sequence[Path],
    options: LoadOptions,
    *,
    findings: bool = False,
    on: str | None = None,
) -> Analysis:
    """Read the ranks that paths have, here or on a cluster, and analyse their job."""
    ranks = ranks_in(paths, cache=options.use_cache)
    tasks = digest_tasks(ranks, options, findings=findings)
    engine = connect(on) if on else local_executor(tasks)
    with engine as executor, counting("ranks") as progress:
        digests, unread = gather(tasks, executor, progress)
    return analyse(assemble(digests, unread))


def analysed_job(path: Path, options: LoadOptions) -> Analysis:
    """Return the one job of a folder; refuse traces that have nothing in common."""
    analysis = analysed([path], options)
    if not analysis.job.collectives.height:
        msg = (
            f"{path} has {analysis.job.ranks.height} traces without a collective that"
            " two of them recorded: give one of them, or the ranks of one job"
        )
        raise InputError(msg)
    return analysis
