"""`traceq summary`: where the time of a step goes, on one screen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.analysis.summary import Summary, summarise
from traceq.cli import output
from traceq.cli.options import (
    FORMAT,
    Captures,
    GivenLabels,
    Kernels,
    NoCache,
    OutputFile,
    Overwrite,
    Own,
    Runs,
    StepMs,
    StepsBy,
    TableFormat,
    paths_argument,
    renamed,
)
from traceq.cli.writing import deliver, refuse_to_lose, write_file
from traceq.errors import TraceqError, UsageError
from traceq.labels import labelled
from traceq.opening.recordings import load_shown, ranks_of, traces
from traceq.opening.settings import nanoseconds, use_captures, use_kernels, use_own
from traceq.report.summary import csv as summary_csv
from traceq.report.summary import json as summary_json
from traceq.report.summary import markdown as summary_markdown
from traceq.report.summary import text as summary_text

if TYPE_CHECKING:
    from traceq.labels import Labels


def command(  # noqa: PLR0913 - one parameter an option
    paths: Annotated[
        list[Path] | None,
        paths_argument(
            "Traces, folders or archives of them, run folders, URLs, or - for standard"
            " input; those of --runs, unless given."
        ),
    ] = None,
    *,
    form: Annotated[TableFormat, FORMAT] = TableFormat.text,
    file: OutputFile = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", hidden=True)] = None,
    overwrite: Overwrite = False,
    critical_path: Annotated[
        bool,
        typer.Option(
            "--critical-path",
            help="Show the critical path: the work that decides how long a step takes.",
        ),
    ] = False,
    host: Annotated[
        bool,
        typer.Option(
            "--host",
            help="Show an account of the host's time: operators, launches, Python.",
        ),
    ] = False,
    step_ms: StepMs = None,
    label: GivenLabels = None,
    runs: Runs = None,
    captures: Captures = None,
    kernels: Kernels = None,
    own: Own = None,
    steps_by: StepsBy = None,
    no_cache: NoCache = False,
) -> None:
    """Show where the time of a step goes: what bounds it, phases, ops, kernels, memory.

    One screen for one trace, one row each for several.
    """
    paths, labels = labelled(paths, label, runs)
    refuse_to_lose(file, paths, overwrite=overwrite)
    use_own(own, steps_by=steps_by)
    use_captures(captures)
    use_kernels(kernels)
    refuse_to_lose(csv, paths, overwrite=overwrite)
    given, unread = traces(paths, cache=not no_cache)
    labels.refuse_unused([*paths, *given])
    found = [
        _summary(
            path,
            rank,
            labels=labels,
            step_ns=nanoseconds(step_ms),
            critical=critical_path,
            host=host,
            cache=not no_cache,
            alone=len(given) == 1 and not unread,
        )
        for path in given
        for rank in ranks_of(path)
    ]
    summaries = [summary for summary in found if summary is not None]
    if csv is not None:
        renamed("--csv FILE", "--format csv -o FILE")
        write_file(csv, summary_csv.render(summaries))
    if summaries:
        deliver(_rendered(summaries, form, to_file=file is not None), file)
    unread += len(found) - len(summaries)
    if unread:
        msg = f"{unread} of {unread + len(summaries)} files could not be read"
        raise UsageError(msg)


def _summary(  # noqa: PLR0913 - what was asked for
    path: Path,
    rank: int | None,
    *,
    labels: Labels,
    step_ns: int | None,
    critical: bool,
    host: bool,
    cache: bool,
    alone: bool,
) -> Summary | None:
    """Summarise a trace; one that cannot be read does not keep the others from it."""
    try:
        trace = load_shown(path, rank=rank, cache=cache)
        return summarise(
            trace,
            step_ns=labels.step_ns(path) or step_ns,
            critical=critical,
            host=host,
            labels=labels.of(path, trace.run),
        )
    except TraceqError as error:
        if alone:
            raise
        output.say(str(error))
        return None


def _rendered(summaries: list[Summary], form: TableFormat, *, to_file: bool) -> str:
    if form is TableFormat.json:
        return summary_json.render(summaries)
    if form is TableFormat.csv:
        return summary_csv.render(summaries)
    if form is TableFormat.markdown:
        return summary_markdown.render(summaries)
    width = None if to_file else output.width()
    color = not to_file and output.color()
    return summary_text.render(summaries, width=width, color=color)
