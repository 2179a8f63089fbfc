"""`traceq check`: lint the fixtures and compare with what is expected."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.check.check import FixtureResult, check, check_against
from traceq.check.difference import Difference
from traceq.check.fixture import ORIGIN, find_fixtures, read_fixture
from traceq.check.program import ProgramError, command_of, run_program
from traceq.check.run import check_run, unable, why_not_to_run
from traceq.cli import output
from traceq.cli.options import (
    FORMAT,
    ConfigFile,
    FailOn,
    NoCache,
    OutputFile,
    Overwrite,
    Packs,
    StepMs,
)
from traceq.cli.writing import deliver, refuse_to_lose
from traceq.errors import TraceqError, UsageError
from traceq.linter.config import severity
from traceq.linter.pack import load_rules
from traceq.opening.jobs import analysed_job, is_job
from traceq.opening.recordings import load_recording
from traceq.opening.settings import configuration, nanoseconds, use_own
from traceq.opening.trust import named
from traceq.ranks.checked import check_job, check_job_against
from traceq.report.check import json as check_json
from traceq.report.check import markdown as check_markdown
from traceq.report.check import text as check_text
from traceq.shown import typed

if TYPE_CHECKING:
    from traceq.linter.config import Config
    from traceq.linter.pack import Rules

_NOT_AS_EXPECTED = 1
_FIXTURES = Path("fixtures")
_NOT_RUN = (
    "it is a job of several ranks, which --run does not start: record one with traceq"
    " collect, and give it with --against"
)


class Format(str, Enum):
    """Formats of the differences."""

    text = "text"
    json = "json"
    markdown = "markdown"


def command(  # noqa: PLR0913 - one parameter an option
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            help=(
                "Fixtures, or folders of them; ./fixtures if none is given. With"
                " --against also the ranks of a job."
            ),
            metavar="FOLDER",
            show_default=False,
        ),
    ] = None,
    *,
    update: Annotated[
        bool,
        typer.Option(
            "--update", help="Write current findings and numbers as the expectation."
        ),
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            help="Compare this new run, trace or job with the fixture.",
            metavar="RUN",
            parser=typed,
        ),
    ] = None,
    step_ms: StepMs = None,
    fail_on: FailOn = None,
    run: Annotated[
        bool,
        typer.Option(
            "--run",
            help="Run the program that origin.toml names, and compare the run.",
        ),
    ] = False,
    cpu: Annotated[
        bool,
        typer.Option("--cpu", help="With --run: let the program see no GPU."),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            help="With --run: stop a program after this long.", metavar="S", min=1
        ),
    ] = 600,
    runs: Annotated[
        Path | None,
        typer.Option(
            help="With --run: keep what was recorded, here.", metavar="FOLDER"
        ),
    ] = None,
    form: Annotated[Format, FORMAT] = Format.text,
    file: OutputFile = None,
    overwrite: Overwrite = False,
    packs: Packs = None,
    config: ConfigFile = None,
    no_cache: NoCache = False,
) -> None:
    """Lint the fixtures and compare: findings with findings.json, numbers with budgets.

    A committed trace does not change when the program does: without --run this tests
    rules and configuration, with --run the program itself, also on a machine without a
    GPU. Exits 0 if all is as expected, 1 if not, 2 if traceq could not do its work or
    had nothing to compare.
    """
    if update and os.environ.get("CI"):
        msg = (
            "--update is refused where CI is set: people change expectations, and read"
            " them"
        )
        raise UsageError(msg)
    _refuse_mixed(update=update, against=against, run=run, step_ms=step_ms)
    refuse_to_lose(file, [against] if against else [], overwrite=overwrite)
    wanted = configuration(config)
    if fail_on:
        wanted = replace(wanted, fail_on=severity(fail_on, "--fail-on"))
    use_own(None, wanted)
    loaded = (*wanted.packs, *(packs or ()))
    rules = load_rules(loaded)
    found = [one for place in folders or [_FIXTURES] for one in _found(place)]
    cache = not no_cache
    if against:
        if len(found) != 1:
            msg = f"--against takes one fixture, not {len(found)}: name its folder"
            raise UsageError(msg)
        if _are_jobs(found[0], against, step_ms):
            known, job = (
                analysed_job(path, cache=cache) for path in (found[0], against)
            )
            results = [check_job_against(found[0], known, job, rules, wanted)]
        else:
            new = load_recording(against, log=None, cache=cache)
            new = replace(new, step_ns=nanoseconds(step_ms) or new.step_ns)
            results = [check_against(found[0], new, rules, wanted)]
    elif run:
        with tempfile.TemporaryDirectory(prefix="traceq-check-") as temporary:
            how = _Running(runs or Path(temporary), cpu, timeout, update)
            results = [_ran(folder, rules, wanted, how) for folder in found]
    else:
        results = [
            _checked(folder, rules, wanted, update=update, cache=cache)
            for folder in found
        ]
    first = named(loaded) if form is Format.text else ""
    deliver(first + _rendered(results, form, to_file=file is not None), file)
    _exit(results)


def _found(place: Path) -> list[Path]:
    """Return the fixtures at or below a place, or the job that it is."""
    try:
        return find_fixtures([place])
    except UsageError:
        if is_job(place):
            return [place]
        raise


def _are_jobs(folder: Path, against: Path, step_ms: float | None) -> bool:
    """Return whether both are jobs of several ranks; refuse one that is alone."""
    jobs = [is_job(path) for path in (folder, against)]
    if jobs[0] != jobs[1]:
        one, other = (folder, against) if jobs[0] else (against, folder)
        msg = (
            f"{one} has the traces of several ranks, and {other} has not: give two of"
            " a kind"
        )
        raise UsageError(msg)
    if all(jobs) and step_ms:
        msg = "--step-ms is of one trace, and these are jobs: leave it out"
        raise UsageError(msg)
    return all(jobs)


def _checked(
    folder: Path, rules: Rules, config: Config, *, update: bool, cache: bool
) -> FixtureResult:
    if not is_job(folder):
        return check(folder, rules, config, update=update, cache=cache)
    try:
        job = analysed_job(folder, cache=cache)
    except TraceqError as error:
        return FixtureResult(folder, (Difference("error", str(error)),))
    return check_job(folder, job, rules, config, update=update)


def _refuse_mixed(
    *, update: bool, against: Path | None, run: bool, step_ms: float | None
) -> None:
    if update and against:
        msg = "--update writes what is found in the fixture itself: leave out --against"
        raise UsageError(msg)
    if run and against:
        msg = "--run makes the run to compare with: leave out --against"
        raise UsageError(msg)
    if step_ms and not against:
        msg = f"--step-ms is of the trace after --against; a fixture's is in {ORIGIN}"
        raise UsageError(msg)


@dataclass(frozen=True)
class _Running:
    """How to run programs."""

    runs: Path
    cpu: bool
    timeout_s: float
    update: bool


def _ran(folder: Path, rules: Rules, config: Config, how: _Running) -> FixtureResult:
    """Run the program of a fixture and compare; one that fails stops no other."""
    try:
        if is_job(folder):
            return unable(folder, _NOT_RUN)
        fixture = read_fixture(folder)
        command = command_of(fixture)
        if command is None:
            text = f"not run: {ORIGIN} has no command"
            skipped = Difference("skipped", text, fails=False)
            return FixtureResult(folder, (skipped,), compared=False)
        if why := why_not_to_run(folder, cpu=how.cpu, update=how.update):
            return unable(folder, why)
        output.say(f"running {' '.join(command.words)}")
        out = how.runs / folder.resolve().name
        made = run_program(command, out, cpu=how.cpu, timeout_s=how.timeout_s)
        new = load_recording(made, log=None, cache=False)
        return check_run(folder, new, rules, config, update=how.update)
    except ProgramError as error:
        for line in error.last_lines:
            output.say(f"| {line}")
        return unable(folder, str(error))
    except TraceqError as error:
        return unable(folder, str(error))


def _exit(results: list[FixtureResult]) -> None:
    if any(result.unable for result in results):
        msg = "not all fixtures could be compared: the report says why"
        raise UsageError(msg)
    if not any(result.compared for result in results):
        msg = "nothing was compared: the report says why"
        raise UsageError(msg)
    if any(result.fails for result in results):
        sys.exit(_NOT_AS_EXPECTED)


def _rendered(results: list[FixtureResult], form: Format, *, to_file: bool) -> str:
    if form is Format.json:
        return check_json.render(results)
    if form is Format.markdown:
        return check_markdown.render(results)
    width = None if to_file else output.width()
    return check_text.render(results, width=width, color=not to_file and output.color())
