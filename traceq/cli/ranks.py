"""`traceq ranks`: one verdict for a job of many ranks."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from traceq.cli import output
from traceq.cli.options import (
    FORMAT,
    NoCache,
    OutputFile,
    Overwrite,
    Own,
    own_code,
    paths_argument,
    use_own,
)
from traceq.cli.recordings import ranks_of, traces
from traceq.cli.writing import deliver, refuse_to_lose
from traceq.fleet.dask import connect
from traceq.ranks.analysis import analyse
from traceq.ranks.gather import digest_tasks, gather, local_executor
from traceq.ranks.job import assemble
from traceq.report.ranks import json as ranks_json
from traceq.report.ranks import text as ranks_text


class Format(str, Enum):
    """How to write it."""

    text = "text"
    json = "json"


def command(  # noqa: PLR0913 - one parameter an option
    paths: Annotated[
        list[Path],
        paths_argument(
            "The traces of a job's ranks: files, folders or archives of them, a run"
            " folder, or URLs."
        ),
    ],
    *,
    form: Annotated[Format, FORMAT] = Format.text,
    file: OutputFile = None,
    overwrite: Overwrite = False,
    own: Own = None,
    findings: Annotated[
        bool,
        typer.Option("--findings", help="Lint each rank, too."),
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            help="Read the traces on a Dask cluster, whose scheduler is there.",
            metavar="ADDRESS",
        ),
    ] = None,
    no_cache: NoCache = False,
) -> None:
    """Show which ranks of a job hold the others up, by how much, and why."""
    refuse_to_lose(file, paths, overwrite=overwrite)
    use_own(own)
    found, _ = traces(paths, cache=not no_cache)
    ranks = [(path, rank) for path in found for rank in ranks_of(path)]
    tasks = digest_tasks(ranks, own_code(), findings=findings, cache=not no_cache)
    engine = connect(on) if on else local_executor(tasks)
    with engine as executor, output.counting("ranks") as progress:
        digests, unread = gather(tasks, executor, progress)
    analysis = analyse(assemble(digests, unread))
    if form is Format.json:
        text = ranks_json.render(analysis)
    else:
        text = ranks_text.render(
            analysis,
            width=None if file else output.width(),
            color=not file and output.color(),
        )
    deliver(text, file)
