"""`traceq summary`: the time of a step by cause, on one screen."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.cli import output
from traceq.cli.deliver import deliver, refuse_to_lose, renderer, write_file
from traceq.cli.options import (
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
    format_option,
    paths_argument,
    renamed,
)
from traceq.errors import UsageError

if TYPE_CHECKING:
    from traceq.api.summary import SummaryResult


class Format(str, Enum):
    """Formats of the summary."""

    text = "text"
    json = "json"
    csv = "csv"
    markdown = "markdown"
    html = "html"


def command(
    paths: Annotated[
        list[Path] | None,
        paths_argument(
            "Traces, folders or archives of them, run folders, URLs, or - for standard"
            " input; those of --runs, unless given."
        ),
    ] = None,
    *,
    form: Annotated[Format, format_option(Format)] = Format.text,
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
    gpu: Annotated[
        bool,
        typer.Option(
            "--gpu",
            help="Show an account of the GPU's busy time: what its work needs, and"
            " losses.",
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
    from traceq.api import settings
    from traceq.api.summary import SummaryOptions, summarise_files
    from traceq.inputs.labels import labelled

    files, labels = labelled(paths, label, runs)
    refuse_to_lose(file, files, overwrite=overwrite)
    refuse_to_lose(csv, files, overwrite=overwrite)
    load = settings.load_options(
        own=own,
        steps_by=steps_by,
        captures=captures,
        kernels=kernels,
        cache=not no_cache,
    )
    options = SummaryOptions(
        load=load,
        labels=labels,
        step_ns=settings.nanoseconds(step_ms),
        critical=critical_path,
        host=host,
        gpu=gpu,
    )
    result = summarise_files(files, options)
    summaries = list(result.summaries)
    if csv is not None:
        renamed("--csv FILE", "--format csv -o FILE")
        write_file(csv, _rendered(result, Format.csv, to_file=True))
    if summaries:
        deliver(_rendered(result, form, to_file=file is not None), file)
    if result.unread:
        count = result.unread + len(summaries)
        msg = f"{result.unread} of {count} files could not be read"
        raise UsageError(msg)


def _rendered(result: SummaryResult, form: Format, *, to_file: bool) -> str:
    if form is Format.html:
        return renderer("page.views:summary_page")(result.pairs)
    render = renderer(f"summary.{form.value}:render")
    if form is not Format.text:
        return render(result.summaries)
    width, color = output.screen(to_file=to_file)
    return render(result.summaries, width=width, color=color)
