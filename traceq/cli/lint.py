"""`traceq lint`: what is wrong, where, what it costs and how to fix it."""

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
from traceq.cli.options import (
    FORMAT,
    Captures,
    ConfigFile,
    FailOn,
    Kernels,
    Log,
    NoCache,
    OutputFile,
    Overwrite,
    Own,
    Packs,
    Root,
    StepMs,
    StepsBy,
    paths_argument,
)
from traceq.cli.writing import deliver, refuse_to_lose, write_file
from traceq.errors import TraceqError, UsageError
from traceq.linter.baseline import (
    baseline_of,
    read_baseline,
    refuse_other_files,
    without_known,
    write_baseline,
)
from traceq.linter.config import severity
from traceq.linter.engine import Report, lint
from traceq.linter.pack import load_rules
from traceq.opening.recordings import load_program, programs
from traceq.opening.settings import (
    configuration,
    nanoseconds,
    use_captures,
    use_kernels,
    use_own,
)
from traceq.opening.trust import named
from traceq.report.lint import concise as lint_concise
from traceq.report.lint import full as lint_full
from traceq.report.lint import github as lint_github
from traceq.report.lint import html as lint_html
from traceq.report.lint import json as lint_json
from traceq.report.lint import markdown as lint_markdown
from traceq.report.lint import sarif as lint_sarif
from traceq.report.located import located, with_sources
from traceq.repository import find_root, read_repository
from traceq.watching import tell
from traceq.words import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.given import Program
    from traceq.linter.config import Config
    from traceq.linter.pack import Rules
    from traceq.recording import Recording

_FOUND = 1
_WORKFLOW = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_SHA")


class Format(str, Enum):
    """Formats of the findings."""

    full = "full"
    concise = "concise"
    json = "json"
    sarif = "sarif"
    github = "github"
    markdown = "markdown"
    html = "html"


# Formats that are attached to lines of a change.
_ATTACHING = (Format.sarif, Format.github)


def command(  # noqa: PLR0913 - one parameter an option
    paths: Annotated[
        list[Path],
        paths_argument(
            "Traces, memory snapshots, logs, folders or archives of them, run folders,"
            " URLs, or - for standard input. TRACE SNAPSHOT LOG of one program are one"
            " recording."
        ),
    ],
    *,
    form: Annotated[Format, FORMAT] = Format.full,
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
    root: Root = None,
    no_cache: NoCache = False,
) -> None:
    """Report what is wrong in a trace or a memory snapshot, worst first, with a fix.

    Exits 0 if no finding reaches --fail-on, 1 if one does, 2 if traceq could not do
    its work.
    """
    refuse_to_lose(file, [*paths, *([log] if log else [])], overwrite=overwrite)
    known = read_baseline(baseline) if baseline else []
    if baseline and not baseline.exists():
        output.say(f"{baseline} is not there: as an empty baseline it hides nothing")
    if new_baseline:
        refuse_other_files(new_baseline)
        refuse_to_lose(new_baseline, paths, overwrite=overwrite)
    wanted = _overridden(configuration(config), select, ignore, packs, fail_on)
    use_own(own, wanted, steps_by)
    use_captures(captures)
    use_kernels(kernels)
    rules = load_rules(wanted.packs)
    recordings, unread = recordings_of(paths, log, step_ms, cache=not no_cache)
    report = lint(recordings, rules, wanted)
    if new_baseline and not report.crashed and not unread:
        known = baseline_of(report)
        write_file(new_baseline, write_baseline(known).decode())
        output.say(f"{counted(len(known), 'finding')} written to {new_baseline}")
    report = without_known(report, known)
    tell("writing")
    report = with_sources(report, sources(recordings))
    attached = form in _ATTACHING
    report, repository = in_repository(report, root, attached=attached)
    first = named(wanted.packs) if form is Format.full else ""
    text = _rendered(report, rules, form, repository, to_file=file is not None)
    deliver(first + text, file)
    _exit(report, unread=unread)


def _overridden(
    config: Config,
    select: list[str] | None,
    ignore: list[str] | None,
    packs: list[Path] | None,
    fail_on: str | None,
) -> Config:
    """Return the configuration as the command line overrides it."""
    if select:
        config = replace(config, select=_split(select))
    if ignore:
        config = replace(config, ignore=config.ignore + _split(ignore))
    if packs:
        config = replace(config, packs=config.packs + tuple(packs))
    if fail_on:
        config = replace(config, fail_on=severity(fail_on, "--fail-on"))
    return config


def _split(texts: list[str]) -> tuple[str, ...]:
    return tuple(part.strip() for text in texts for part in text.split(",") if part)


def recordings_of(
    paths: list[Path], log: Path | None, step_ms: float | None, *, cache: bool
) -> tuple[list[Recording], int]:
    """Return what was recorded of all programs, and how many could not be read."""
    given, unread = programs(paths, cache=cache)
    alone = len(given) == 1 and not unread
    found = [_recording(one, log, step_ms, cache=cache, alone=alone) for one in given]
    recordings = [one for one in found if one is not None]
    return recordings, unread + len(found) - len(recordings)


def _recording(
    program: Program,
    log: Path | None,
    step_ms: float | None,
    *,
    cache: bool,
    alone: bool,
) -> Recording | None:
    try:
        recording = load_program(program, log=log, cache=cache)
    except TraceqError as error:
        if alone:
            raise
        output.say(str(error))
        return None
    return replace(recording, step_ns=nanoseconds(step_ms) or recording.step_ns)


def sources(recordings: list[Recording]) -> dict[str, Mapping[str, str]]:
    """Return the source files that run folders have, by the recordings' names."""
    ranks = {one.name: one.trace.rank for one in recordings if one.trace}
    return {name: rank.sources for name, rank in ranks.items() if rank}


def in_repository(
    report: Report, root: Path | None, *, attached: bool = False
) -> tuple[Report, Path | None]:
    """Return the report with paths of the repository, and its root if there is one."""
    folder = root or find_root(Path.cwd())
    if folder is None:
        return report, None
    report, missing = located(report, read_repository(folder))
    places = [one.place for outcome in report.outcomes for one in outcome.findings]
    # In a repository of another program nothing is found, nor need it be.
    if missing and (root or attached or any(one.path for one in places)):
        output.say(missing)
    return report, folder


def _rendered(
    report: Report, rules: Rules, form: Format, root: Path | None, *, to_file: bool
) -> str:
    if form is Format.sarif:
        return lint_sarif.render(report, rules, root)
    if form is Format.full:
        if to_file:
            return lint_full.render(report, width=None, color=False)
        return lint_full.render(report, width=output.width(), color=output.color())
    if form is Format.markdown:
        return lint_markdown.render(report, _address())
    if form is Format.concise:
        return lint_concise.render(report, color=not to_file and output.color())
    renderers = {
        Format.json: lint_json.render,
        Format.github: lint_github.render,
        Format.html: lint_html.render,
    }
    return renderers[form](report)


def _address() -> str:
    """Return where the code host shows files of this commit, in its workflow."""
    known = [os.environ.get(name) for name in _WORKFLOW]
    if not all(known):
        return ""
    server, repository, commit = known
    return f"{server}/{repository}/blob/{commit}/"


def _exit(report: Report, unread: int) -> None:
    if unread:
        msg = f"{unread} of {unread + len(report.outcomes)} files could not be read"
        raise UsageError(msg)
    if report.crashed:
        count = len({rule.code for one in report.outcomes for rule in one.crashed})
        msg = f"{counted(count, 'rule')} crashed; this run cannot be called clean"
        raise UsageError(msg)
    if report.failing:
        sys.exit(_FOUND)
