"""`traceq summary`: a trace at first sight."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from traceq.analysis.summary import Summary, summarise
from traceq.cli import output
from traceq.cli.recordings import NoCache, load_shown, ranks_of
from traceq.errors import TraceqError, UsageError
from traceq.report.summary import csv as summary_csv
from traceq.report.summary import json as summary_json
from traceq.report.summary import markdown as summary_markdown
from traceq.report.summary import text as summary_text

_NANOSECONDS = 1_000_000


class Format(str, Enum):
    """How to write a summary."""

    text = "text"
    json = "json"
    csv = "csv"
    markdown = "markdown"


def command(  # noqa: PLR0913 - one parameter an option
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Traces, plain or gzipped, or run folders.", metavar="PATH"
        ),
    ],
    *,
    form: Annotated[
        Format, typer.Option("--format", help="How to write the summary.")
    ] = Format.text,
    csv: Annotated[
        Path | None,
        typer.Option(
            help="Write one row a trace to this new file, too.", metavar="FILE"
        ),
    ] = None,
    critical_path: Annotated[
        bool,
        typer.Option(
            "--critical-path", help="Show the chain of work a step is as long as."
        ),
    ] = False,
    step_ms: Annotated[
        float | None,
        typer.Option(
            help="What a step takes without the profiler; a run folder says it.",
            min=0.0,
        ),
    ] = None,
    no_cache: NoCache = False,
) -> None:
    """Say what is in a trace: steps, idle time, phases, kinds, longest ops and kernels.

    One screen for one trace, one row each for several.
    """
    step_ns = round(step_ms * _NANOSECONDS) if step_ms else None
    if csv is not None and csv.exists():
        msg = f"{csv} exists already and will not be overwritten: give another name"
        raise UsageError(msg)
    found = [
        _summary(
            path,
            rank,
            step_ns=step_ns,
            critical=critical_path,
            cache=not no_cache,
            alone=len(paths) == 1,
        )
        for path in paths
        for rank in ranks_of(path)
    ]
    summaries = [summary for summary in found if summary is not None]
    if csv is not None:
        _write_new(csv, summary_csv.render(summaries))
    if summaries:
        output.write(_rendered(summaries, form))
    if len(summaries) < len(found):
        msg = f"{len(found) - len(summaries)} of {len(found)} files could not be read"
        raise UsageError(msg)


def _summary(  # noqa: PLR0913 - what was asked for
    path: Path,
    rank: int | None,
    *,
    step_ns: int | None,
    critical: bool,
    cache: bool,
    alone: bool,
) -> Summary | None:
    """Summarise a trace; one that cannot be read does not keep the others from it."""
    try:
        trace = load_shown(path, rank=rank, cache=cache)
        return summarise(trace, step_ns=step_ns, critical=critical)
    except TraceqError as error:
        if alone:
            raise
        output.say(f"traceq: {error}")
        return None


def _rendered(summaries: list[Summary], form: Format) -> str:
    if form is Format.json:
        return summary_json.render(summaries)
    if form is Format.csv:
        return summary_csv.render(summaries)
    if form is Format.markdown:
        return summary_markdown.render(summaries)
    return summary_text.render(summaries, width=output.width(), color=output.color())


def _write_new(file: Path, text: str) -> None:
    try:
        with file.open("x", encoding="utf-8", newline="") as stream:
            stream.write(text)
    except OSError as error:
        msg = f"{file} cannot be written: {error.strerror or error}"
        raise UsageError(msg) from None
