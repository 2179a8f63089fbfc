"""`traceq summary`: a trace at first sight."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from traceq.analysis.summary import summarise
from traceq.cli import output
from traceq.cli.loading import NoCache, load_shown
from traceq.errors import TraceqError, UsageError
from traceq.report import summary_csv, summary_json, summary_markdown, summary_text


class Format(str, Enum):
    """How to write a summary."""

    text = "text"
    json = "json"
    csv = "csv"
    markdown = "markdown"


def command(
    paths: Annotated[
        list[Path], typer.Argument(help="Traces, plain or gzipped.", metavar="TRACE...")
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
    no_cache: NoCache = False,
) -> None:
    """Say what is in a trace: steps, idle time, phases, kinds, longest ops and kernels.

    One screen for one trace, one row each for several.
    """
    if csv is not None and csv.exists():
        msg = f"{csv} exists already and will not be overwritten: give another name"
        raise UsageError(msg)
    summaries, refused = [], 0
    for path in paths:
        try:
            summaries.append(summarise(load_shown(path, cache=not no_cache)))
        except TraceqError as error:
            if len(paths) == 1:
                raise
            output.say(f"traceq: {error}")
            refused += 1
    if csv is not None:
        _write_new(csv, summary_csv.render(summaries))
    if form is Format.json:
        output.write(summary_json.render(summaries))
    elif form is Format.csv:
        output.write(summary_csv.render(summaries))
    elif form is Format.markdown:
        output.write(summary_markdown.render(summaries))
    elif summaries:
        output.write(
            summary_text.render(summaries, width=output.width(), color=output.color())
        )
    if refused:
        msg = f"{refused} of {len(paths)} files could not be read"
        raise UsageError(msg)


def _write_new(file: Path, text: str) -> None:
    try:
        with file.open("x", encoding="utf-8", newline="") as stream:
            stream.write(text)
    except OSError as error:
        msg = f"{file} cannot be written: {error.strerror or error}"
        raise UsageError(msg) from None
