"""`traceq ranks`: one verdict for a job of many ranks."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.cli import output
from traceq.cli.deliver import deliver, refuse_to_lose, renderer
from traceq.cli.options import (
    ConfigFile,
    FailOn,
    NoCache,
    OutputFile,
    Overwrite,
    Own,
    StepsBy,
    format_option,
    paths_argument,
)
from traceq.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.api.job import JobResult
    from traceq.model.finding import Severity
    from traceq.model.lint_report import Report

_FOUND = 1
_OP_TABLE = ".parquet"


class Format(str, Enum):
    """Formats of the verdict."""

    text = "text"
    json = "json"
    html = "html"
    markdown = "markdown"


_RENDERERS = {
    Format.html: "page.views:ranks_page",
    Format.markdown: "ranks.markdown:render",
}


def command(
    paths: Annotated[
        list[Path],
        paths_argument(
            "The traces of a job's ranks: files, folders or archives of them, a run"
            " folder, or URLs; the flight recorder's dumps of a job that hangs; or one"
            " Parquet table of ops, as StragglerAnalysis has."
        ),
    ],
    *,
    form: Annotated[Format, format_option(Format)] = Format.text,
    file: OutputFile = None,
    overwrite: Overwrite = False,
    fail_on: FailOn = None,
    config: ConfigFile = None,
    own: Own = None,
    steps_by: StepsBy = None,
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
    from traceq.api import settings
    from traceq.api.job import analysed_files

    refuse_to_lose(file, paths, overwrite=overwrite)
    if any(path.suffix == _OP_TABLE for path in paths):
        _refuse_for_ops(
            {"--fail-on": fail_on, "--config": config, "--own": own}
            | {"--steps-by": steps_by, "--findings": findings, "--on": on}
        )
        deliver(_of_op_table(paths, form, to_file=file is not None), file)
        return
    wanted = settings.overridden(settings.configuration(config), fail_on=fail_on)
    if dumps := _dumps(paths):
        _report_dumps(dumps, form, wanted.fail_on, file)
        return
    load = settings.load_options(wanted, own=own, steps_by=steps_by, cache=not no_cache)
    options = settings.LintOptions(config=wanted, load=load)
    result = analysed_files(paths, options, findings=findings, on=on)
    deliver(_rendered(result, form, to_file=file is not None), file)
    _exit(result.report)


def _dumps(paths: list[Path]) -> list[Path]:
    """Return the flight recorder's dumps among the paths; none if these are traces."""
    from traceq.inputs.display_path import Url
    from traceq.ranks.dumps import dumps_in

    return dumps_in([path for path in paths if not isinstance(path, Url)])


def _report_dumps(
    dumps: list[Path], form: Format, fail_on: Severity, file: Path | None
) -> None:
    """Report on dumps of the flight recorder, and exit as for traces."""
    from traceq.ranks.dumps import read_job
    from traceq.ranks.late_calls import problems_of
    from traceq.report.ranks import hangs

    if form not in (Format.text, Format.json):
        msg = f"dumps are reported as text or json, not as {form.value}"
        raise UsageError(msg)
    job, problems = problems_of(read_job(dumps))
    failing = sum(problem.severity.rank >= fail_on.rank for problem in problems)
    if form is Format.json:
        text = hangs.render_json(job, problems, failing)
    else:
        width, color = output.screen(to_file=file is not None)
        text = hangs.render(job, problems, width=width, color=color)
    deliver(text, file)
    if failing:
        sys.exit(_FOUND)
    if job.unread:
        msg = "some dumps cannot be read; this job cannot be called free of hangs"
        raise UsageError(msg)


def _refuse_for_ops(options: Mapping[str, object]) -> None:
    """Refuse what a table of ops has not: traces that rules could look at."""
    for name, value in options.items():
        if value:
            msg = f"{name} is for traces: a table of ops has no findings"
            raise UsageError(msg)


def _of_op_table(paths: list[Path], form: Format, *, to_file: bool) -> str:
    """Return the report on a table of all ranks' ops, which is not one of traces."""
    from traceq.ranks.op_table import read_op_table
    from traceq.ranks.op_table_analysis import analyse_op_table
    from traceq.report.ranks import op_table

    if len(paths) > 1:
        msg = f"a table of ops is a whole job: give {paths[0]} alone"
        raise UsageError(msg)
    if form is Format.html:
        msg = "a table of ops is reported as text, markdown or json, not as html"
        raise UsageError(msg)
    analysis = analyse_op_table(read_op_table(paths[0]))
    if form is Format.json:
        return op_table.render_json(analysis)
    if form is Format.markdown:
        return op_table.render_markdown(analysis)
    width, color = output.screen(to_file=to_file)
    return op_table.render(analysis, width=width, color=color)


def _exit(report: Report) -> None:
    if report.crashed:
        msg = "a rule crashed; this job cannot be called clean"
        raise UsageError(msg)
    if report.failing:
        sys.exit(_FOUND)


def _rendered(result: JobResult, form: Format, *, to_file: bool) -> str:
    if form is Format.json:
        return result.json()
    if form is not Format.text:
        return renderer(_RENDERERS[form])(result.analysis, result.report)
    width, color = output.screen(to_file=to_file)
    return result.text(width=width, color=color)
