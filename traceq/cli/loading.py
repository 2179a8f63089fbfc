"""Traces for the commands, with progress, and errors that do not stop the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import polars as pl
import typer

from traceq.cli import output
from traceq.formats.log import read_log
from traceq.formats.run import is_run, read_run
from traceq.loading import load
from traceq.recording import Recording

if TYPE_CHECKING:
    from traceq.trace import Trace

_LOGS = (".log", ".txt", ".out", ".err")

NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache", help="Neither read nor keep tables in the user's cache."
    ),
]


def ranks_of(path: Path) -> list[int | None]:
    """Return the ranks of a run folder that have a trace; for a file, none at all."""
    if not is_run(path):
        return [None]
    ranks = [rank.rank for rank in read_run(path).ranks if rank.trace]
    return list(ranks) or [None]


def load_shown(path: Path, *, rank: int | None = None, cache: bool) -> Trace:
    """Load a trace, show progress, and say what of it could not be read."""
    with output.reading(path.name) as progress:
        trace = load(path, rank=rank, cache=cache, progress=progress)
    for sentence in trace.facts.damage:
        output.say(f"traceq: {path} is incomplete: {sentence}")
    return trace


def load_recording(path: Path, *, log: Path | None, cache: bool) -> Recording:
    """Load what was recorded of a program: a trace, or a log alone."""
    if path.suffix in _LOGS or path.name.endswith(".log.gz"):
        return Recording(str(path), log=read_log(path))
    trace = load_shown(path, cache=cache)
    logs = [log] if log else list(trace.run.logs) if trace.run else []
    lines = pl.concat(map(read_log, logs)) if logs else None
    return Recording(str(path), trace, lines, trace.step_ns)
