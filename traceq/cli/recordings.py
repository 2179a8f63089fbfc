"""Recordings for the commands: traces, snapshots, logs and run folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.cli import output
from traceq.formats.log import read_log
from traceq.formats.run import is_run, read_run
from traceq.formats.snapshot import read_snapshot
from traceq.loading import load
from traceq.recording import Recording

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.trace import Trace

_LOGS = (".log", ".txt", ".out", ".err")
_SNAPSHOTS = (".pickle", ".pickle.gz", ".pkl", ".pkl.gz")


def ranks_of(path: Path) -> list[int | None]:
    """Return the ranks of a run folder that have a trace; for a file, none at all."""
    if not is_run(path):
        return [None]
    ranks = [rank.rank for rank in read_run(path).ranks if rank.trace]
    return list(ranks) or [None]


def load_shown(path: Path, *, rank: int | None = None, cache: bool) -> Trace:
    """Load a trace with progress, and warn of what of it could not be read."""
    with output.reading(path.name) as progress:
        trace = load(path, rank=rank, cache=cache, progress=progress)
    for sentence in trace.facts.damage:
        output.say(f"{path} is incomplete: {sentence}")
    if trace.step_in_doubt:
        output.say(
            f"{path}: the step measured without the profiler is three times as long as"
            " the recorded ones or more, so it is not used: other steps were timed than"
            " traced"
        )
    return trace


def load_recording(path: Path, *, log: Path | None, cache: bool) -> Recording:
    """Load what was recorded of a program: a trace, a snapshot, a log or a run."""
    if path.suffix in _LOGS or path.name.endswith(".log.gz"):
        return Recording(str(path), log=log_shown(path))
    if is_snapshot(path):
        lines = log_shown(log) if log else None
        return Recording(str(path), log=lines, snapshots={0: read_snapshot(path)})
    run = read_run(path) if is_run(path) else None
    ranks = run.ranks if run else ()
    snapshots = {rank.rank: read_snapshot(rank.memory) for rank in ranks if rank.memory}
    # Of a run that died before it was traced, memory may show why.
    untraced = snapshots and not any(rank.trace for rank in ranks)
    trace = None if untraced else load_shown(path, cache=cache)
    logs = [log] if log else list(run.logs) if run else []
    lines = pl.concat(map(log_shown, logs)) if logs else None
    step_ns = trace.step_ns if trace else None
    return Recording(str(path), trace, lines, step_ns, snapshots)


def log_shown(path: Path) -> pl.DataFrame:
    """Return the lines of a log, and warn if only its beginning was read."""
    log = read_log(path)
    if log.cut:
        output.say(
            f"{path} is long: only its first {log.lines.height:,} lines are read"
        )
    return log.lines


def is_snapshot(path: Path) -> bool:
    """Return whether a file is called as memory snapshots are."""
    return path.is_file() and path.name.endswith(_SNAPSHOTS)
