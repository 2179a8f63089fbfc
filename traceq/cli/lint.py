"""`traceq lint`: what is wrong, where, what it costs, and what to write instead."""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.cli import output
from traceq.cli.recordings import NoCache, load_recording
from traceq.cli.writing import refuse_to_lose, write_report
from traceq.errors import TraceqError, UsageError
from traceq.lint.baseline import (
    baseline_of,
    read_baseline,
    refuse_other_files,
    without_known,
    write_baseline,
)
from traceq.lint.config import find_config, read_config, severity
from traceq.lint.engine import Report, lint
from traceq.lint.pack import load_rules
from traceq.report.lint import concise as lint_concise
from traceq.report.lint import full as lint_full
from traceq.report.lint import github as lint_github
from traceq.report.lint import json as lint_json
from traceq.report.lint import markdown as lint_markdown
from traceq.report.lint import sarif as lint_sarif
from traceq.words import counted

if TYPE_CHECKING:
    from traceq.lint.config import Config
    from traceq.lint.pack import Rules
    from traceq.recording import Recording

_FOUND = 1
_NANOSECONDS = 1_000_000


class Format(str, Enum):
    """How to write the findings."""

    full = "full"
    concise = "concise"
    json = "json"
    sarif = "sarif"
    github = "github"
    markdown = "markdown"


Packs = Annotated[
    list[Path] | None,
    typer.Option("--rules", help="A folder of rules of your own.", metavar="FOLDER"),
]


def command(  # noqa: PLR0913 - one parameter an option
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Traces, memory snapshots, run folders or logs.", metavar="PATH"
        ),
    ],
    *,
    form: Annotated[
        Format, typer.Option("--format", help="How to write the findings.")
    ] = Format.full,
    file: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write to this new file.", metavar="FILE"),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Write over an older report in that place."),
    ] = False,
    select: Annotated[
        list[str] | None,
        typer.Option(help="Run only these: codes, prefixes or names.", metavar="RULE"),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(help="Do not run these.", metavar="RULE")
    ] = None,
    packs: Packs = None,
    log: Annotated[
        Path | None,
        typer.Option(help="What the traced program printed.", metavar="FILE"),
    ] = None,
    step_ms: Annotated[
        float | None,
        typer.Option(
            help="What a step takes without the profiler.", metavar="MS", min=0.000001
        ),
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            help="Exit 1 from this on: info, warning, error.", metavar="LEVEL"
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            help="Be silent on what this file knows, unless it grew by a tenth.",
            metavar="FILE",
        ),
    ] = None,
    new_baseline: Annotated[
        Path | None,
        typer.Option(
            "--write-baseline", help="Write what is found as known.", metavar="FILE"
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Configuration instead of the nearest traceq.toml.", metavar="FILE"
        ),
    ] = None,
    no_cache: NoCache = False,
) -> None:
    """Say what is wrong in a trace or a memory snapshot, worst first, and what to do.

    Exits 0 if there is nothing to fail on, 1 if there is, 2 if traceq could not work.
    """
    if file is not None:
        refuse_to_lose(file, [*paths, *([log] if log else [])], overwrite=overwrite)
    known = read_baseline(baseline) if baseline else []
    if new_baseline:
        refuse_other_files(new_baseline)
    wanted = read_config(config) if config else find_config(Path.cwd())
    wanted = _overridden(wanted, select, ignore, packs, fail_on)
    rules = load_rules(wanted.packs)
    found = [
        _recording(path, log, step_ms, cache=not no_cache, alone=len(paths) == 1)
        for path in paths
    ]
    recordings = [one for one in found if one is not None]
    report = lint(recordings, rules, wanted)
    if new_baseline and not report.crashed and len(recordings) == len(paths):
        known = baseline_of(report)
        write_report(new_baseline, write_baseline(known).decode())
        count = "1 finding is" if len(known) == 1 else f"{len(known)} findings are"
        output.say(f"traceq: {count} known now: {new_baseline}")
    report = without_known(report, known)
    text = _rendered(report, rules, form, to_file=file is not None)
    if file is None:
        output.write(text)
    else:
        write_report(file, text)
    _exit(report, unread=len(paths) - len(recordings))


def _overridden(
    config: Config,
    select: list[str] | None,
    ignore: list[str] | None,
    packs: list[Path] | None,
    fail_on: str | None,
) -> Config:
    """Return the configuration with what the command line says instead."""
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


def _recording(
    path: Path, log: Path | None, step_ms: float | None, *, cache: bool, alone: bool
) -> Recording | None:
    step_ns = round(step_ms * _NANOSECONDS) if step_ms else None
    try:
        recording = load_recording(path, log=log, cache=cache)
    except TraceqError as error:
        if alone:
            raise
        output.say(f"traceq: {error}")
        return None
    return replace(recording, step_ns=step_ns or recording.step_ns)


def _rendered(report: Report, rules: Rules, form: Format, *, to_file: bool) -> str:
    if form is Format.sarif:
        return lint_sarif.render(report, rules)
    if form is Format.full:
        if to_file:
            return lint_full.render(report, width=None, color=False)
        return lint_full.render(report, width=output.width(), color=output.color())
    renderers = {
        Format.concise: lint_concise.render,
        Format.json: lint_json.render,
        Format.github: lint_github.render,
        Format.markdown: lint_markdown.render,
    }
    return renderers[form](report)


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
