"""`traceq ranks`: one verdict for a job of many ranks."""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.cli import output
from traceq.cli.options import (
    FORMAT,
    ConfigFile,
    FailOn,
    NoCache,
    OutputFile,
    Overwrite,
    Own,
    paths_argument,
)
from traceq.cli.writing import deliver, refuse_to_lose
from traceq.errors import UsageError
from traceq.linter.config import severity
from traceq.linter.pack import load_rules
from traceq.opening.jobs import analysed
from traceq.opening.settings import configuration, use_own
from traceq.ranks.findings import lint_job
from traceq.report.ranks import html as ranks_html
from traceq.report.ranks import json as ranks_json
from traceq.report.ranks import markdown as ranks_markdown
from traceq.report.ranks import text as ranks_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.linter.engine import Report
    from traceq.ranks.analysis import Analysis

_FOUND = 1


class Format(str, Enum):
    """How to write it."""

    text = "text"
    json = "json"
    html = "html"
    markdown = "markdown"


_RENDERERS = {
    Format.json: ranks_json.render,
    Format.html: ranks_html.render,
    Format.markdown: ranks_markdown.render,
}


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
    fail_on: FailOn = None,
    config: ConfigFile = None,
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
    """Show which ranks of a job hold the others up, by how much, and why.

    Exits 0 if no finding reaches --fail-on, 1 if one does, 2 if traceq could not do
    its work.
    """
    refuse_to_lose(file, paths, overwrite=overwrite)
    wanted = configuration(config)
    if fail_on:
        wanted = replace(wanted, fail_on=severity(fail_on, "--fail-on"))
    use_own(own, wanted)
    rules = load_rules(wanted.packs)
    analysis = analysed(paths, findings=findings, on=on, cache=not no_cache)
    report = lint_job(_name(paths), analysis, rules, wanted)
    deliver(_rendered(analysis, report, form, to_file=file is not None), file)
    _exit(report)


def _exit(report: Report) -> None:
    if report.crashed:
        msg = "a rule crashed; this job cannot be called clean"
        raise UsageError(msg)
    if report.failing:
        sys.exit(_FOUND)


def _name(paths: Sequence[Path]) -> str:
    more = len(paths) - 1
    return str(paths[0]) + (f" and {more} more" if more else "")


def _rendered(
    analysis: Analysis, report: Report, form: Format, *, to_file: bool
) -> str:
    if form is not Format.text:
        return _RENDERERS[form](analysis, report)
    return ranks_text.render(
        analysis,
        report,
        width=None if to_file else output.width(),
        color=not to_file and output.color(),
    )
