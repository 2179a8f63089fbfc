"""`traceq lint`: problems with their place, cost and fix."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.cli import output
from traceq.cli.completion import codes
from traceq.cli.deliver import deliver, refuse_to_lose, renderer, write_file
from traceq.cli.options import (
    Captures,
    ConfigFile,
    FailOn,
    Kernels,
    Log,
    NoCache,
    NoPacks,
    OutputFile,
    Overwrite,
    Own,
    Packs,
    RankNumber,
    Root,
    StepMs,
    StepsBy,
    format_option,
    paths_argument,
)
from traceq.common.words import counted
from traceq.errors import UsageError

if TYPE_CHECKING:
    from traceq.api.lint import LintResult
    from traceq.linter.baseline import BaselineEntry
    from traceq.model.lint_report import Report

_FOUND = 1
_WORKFLOW = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_SHA")


class Format(str, Enum):
    """Formats of the findings."""

    brief = "brief"
    full = "full"
    concise = "concise"
    json = "json"
    agent = "agent"
    sarif = "sarif"
    github = "github"
    markdown = "markdown"
    html = "html"
    junit = "junit"
    gitlab = "gitlab"


# Formats that are attached to lines of a change.
_ATTACHING = (Format.sarif, Format.github, Format.gitlab)
_TEXTS = (Format.brief, Format.full)


def command(
    paths: Annotated[
        list[Path] | None,
        paths_argument(
            "Traces, memory snapshots, logs, folders or archives of them, run folders,"
            " URLs, or - for standard input. TRACE SNAPSHOT LOG of one program are one"
            " recording. Without any, the newest run in ./traceq-runs."
        ),
    ] = None,
    *,
    form: Annotated[Format, format_option(Format)] = Format.brief,
    file: OutputFile = None,
    overwrite: Overwrite = False,
    select: Annotated[
        list[str] | None,
        typer.Option(
            help="Run only these rules: codes, prefixes of codes or names.",
            metavar="RULE",
            autocompletion=codes,
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            help="Do not run these rules.", metavar="RULE", autocompletion=codes
        ),
    ] = None,
    packs: Packs = None,
    no_packs: NoPacks = False,
    log: Log = None,
    step_ms: StepMs = None,
    fail_on: FailOn = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Hide findings listed in this baseline unless they grew by more than"
                " 10%."
            ),
            metavar="FILE",
        ),
    ] = None,
    new_baseline: Annotated[
        Path | None,
        typer.Option(
            "--write-baseline",
            help="Write current findings as the baseline.",
            metavar="FILE",
        ),
    ] = None,
    config: ConfigFile = None,
    captures: Captures = None,
    kernels: Kernels = None,
    own: Own = None,
    steps_by: StepsBy = None,
    rank: RankNumber = None,
    root: Root = None,
    no_cache: NoCache = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Show all findings in full, as --select does with those it selects.",
        ),
    ] = False,
    top: Annotated[
        int | None,
        typer.Option(help="Findings of --format agent.", metavar="N", min=1),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(
            help="Show the findings of this rule in full, or why it has none.",
            metavar="RULE",
            autocompletion=codes,
        ),
    ] = None,
) -> None:
    """Report what is wrong in a trace or a memory snapshot, worst first, with a fix.

    Exits 0 if no finding reaches --fail-on, 1 if one does, 2 if traceq could not do
    its work.
    """
    from traceq.api import settings
    from traceq.api.lint import baseline_findings, lint_files
    from traceq.linter.baseline import refuse_other_files

    _refuse_other_formats(form, explain, top)
    paths = paths or [_newest()]
    refuse_to_lose(file, [*paths, *([log] if log else [])], overwrite=overwrite)
    listed: list[BaselineEntry] = []
    if new_baseline:
        listed = baseline_findings(baseline)
        refuse_other_files(new_baseline)
        refuse_to_lose(new_baseline, paths, overwrite=overwrite)
    wanted = settings.overridden(
        settings.configuration(config, packs=not no_packs),
        select=select,
        ignore=ignore,
        fail_on=fail_on,
        rules=packs,
    )
    load = settings.load_options(
        wanted,
        own=own,
        steps_by=steps_by,
        captures=captures,
        kernels=kernels,
        rank=rank,
        cache=not no_cache,
    )
    options = settings.LintOptions(
        config=wanted,
        load=load,
        log=log,
        step_ns=settings.nanoseconds(step_ms),
        baseline=None if new_baseline else baseline,
        root=root,
        tables=False,
    )
    result = lint_files(paths, options)
    if new_baseline:
        result = _with_baseline(result, new_baseline, listed)
    missing = result.not_in_repository
    if form in _ATTACHING and missing and missing not in result.notes:
        output.say(missing)
    # Selected rules are shown in full.
    in_full = verbose or bool(select and "ALL" not in select)
    to_file = file is not None
    if form is Format.agent:
        text = result.agent(top=top)
    elif explain is not None:
        width, color = output.screen(to_file=to_file)
        text = result.explain(explain, width=width, color=color)
    else:
        text = _rendered(result, form, to_file=to_file, verbose=in_full)
    deliver(text, file)
    _exit(result.report, unread=result.unread)


def _refuse_other_formats(form: Format, explain: str | None, top: int | None) -> None:
    """Raise if an option of one format is given with another."""
    if explain is not None and form not in _TEXTS:
        msg = "--explain prints text: leave out --format"
        raise UsageError(msg)
    if top is not None and form is not Format.agent:
        msg = "--top is of --format agent"
        raise UsageError(msg)


def _newest() -> Path:
    from traceq.inputs.discovery import newest_run

    run = newest_run()
    output.say(f"lint of the newest run, {run}")
    return run


def _with_baseline(
    result: LintResult, file: Path, listed: list[BaselineEntry]
) -> LintResult:
    """Write the findings as the baseline and hide them; else those of the old one."""
    from traceq.linter.baseline import baseline_of, without_listed, write_baseline

    if not result.report.crashed and not result.unread:
        listed = baseline_of(result.report)
        write_file(file, write_baseline(listed).decode())
        output.say(f"{counted(len(listed), 'finding')} written to {file}")
    return replace(result, report=without_listed(result.report, listed))


def _rendered(result: LintResult, form: Format, *, to_file: bool, verbose: bool) -> str:
    report = result.report
    if form is Format.sarif:
        return renderer("lint.sarif:render")(
            report, result.rules, result.repository, result.proposals()
        )
    if form in _TEXTS:
        width, color = output.screen(to_file=to_file)
        full = form is Format.full
        return result.text(width=width, color=color, full=full, verbose=verbose)
    if form is Format.markdown:
        return renderer("lint.markdown:render")(report, _address())
    if form is Format.concise:
        color = not to_file and output.color()
        return renderer("lint.concise:render")(report, color=color)
    if form is Format.json:
        return result.json()
    return renderer(f"lint.{form.value}:render")(report)


def _address() -> str:
    """Return where the code host shows files of this commit, in its workflow."""
    values = [os.environ.get(name) for name in _WORKFLOW]
    if not all(values):
        return ""
    server, repository, commit = values
    return f"{server}/{repository}/blob/{commit}/"


def _exit(report: Report, unread: int) -> None:
    if unread:
        msg = f"{unread} of {unread + len(report.outcomes)} files could not be read"
        raise UsageError(msg)
    if report.crashed:
        count = len(
            {rule.code for outcome in report.outcomes for rule in outcome.crashed}
        )
        msg = f"{counted(count, 'rule')} crashed; this run cannot be called clean"
        raise UsageError(msg)
    if report.failing:
        sys.exit(_FOUND)
