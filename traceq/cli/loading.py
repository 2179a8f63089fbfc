"""Traces for the commands, with progress, and errors that do not stop the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.cli import output
from traceq.loading import load

if TYPE_CHECKING:
    from traceq.trace import Trace

NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache", help="Neither read nor keep tables in the user's cache."
    ),
]


def load_shown(path: Path, *, cache: bool) -> Trace:
    """Load a trace, show progress, and say what of it could not be read."""
    with output.reading(path.name) as progress:
        trace = load(path, cache=cache, progress=progress)
    for sentence in trace.facts.damage:
        output.say(f"traceq: {path} is incomplete: {sentence}")
    return trace
