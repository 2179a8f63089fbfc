"""Implementation of `traceq check`: comparison of fixtures with their expectations."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from traceq.check.check import FixtureResult, check, check_against
from traceq.check.difference import Difference
from traceq.check.fixture import find_fixtures, read_fixture
from traceq.check.program import ProgramError, command_of, run_program
from traceq.check.run import check_run, unable, why_not_to_run
from traceq.cli import output
from traceq.errors import TraceqError, UsageError
from traceq.formats.fixture_origin import ORIGIN
from traceq.inputs.load_recording import load_recording
from traceq.ranks.check_job import check_job, check_job_against
from traceq.ranks.load_job import analysed_job, is_job

if TYPE_CHECKING:
    from traceq.api.settings import LintOptions
    from traceq.linter.pack import Rules

_NOT_RUN = (
    "it is a job of several ranks, which --run does not start: record one with traceq"
    " collect, and give it with --against"
)


@dataclass(frozen=True)
class Running:
    """Options for running programs."""

    runs: Path | None
    """Folder for the recorded runs; they are deleted if none."""
    cpu: bool
    timeout_s: float


@dataclass(frozen=True, kw_only=True)
class Checking:
    """Options of a comparison: what is read, and what it is held to."""

    rules: Rules
    lint: LintOptions
    against: Path | None = None
    """Run, trace or job to compare with the fixture."""
    running: Running | None = None
    update: bool = False


def compared(folders: list[Path], how: Checking) -> list[FixtureResult]:
    """Return what differs, for each fixture."""
    fixtures = [one for place in folders for one in _fixtures_or_job(place)]
    if how.against:
        return [_checked_against(fixtures, how.against, how)]
    if how.running:
        with tempfile.TemporaryDirectory(prefix="traceq-check-") as temporary:
            to = how.running.runs or Path(temporary)
            return [_ran(one, how, how.running, to) for one in fixtures]
    return [_checked(folder, how) for folder in fixtures]


def _checked_against(
    folders: list[Path], against: Path, how: Checking
) -> FixtureResult:
    """Compare a new recording or job with the one fixture."""
    if len(folders) != 1:
        msg = f"--against takes one fixture, not {len(folders)}: name its folder"
        raise UsageError(msg)
    (folder,) = folders
    if _are_jobs(folder, against, how.lint.step_ns):
        before, job = (analysed_job(path, how.lint.load) for path in (folder, against))
        return check_job_against(folder, before, job, how.rules, how.lint.config)
    new = load_recording(against, how.lint.load)
    new = replace(new, step_ns=how.lint.step_ns or new.step_ns)
    return check_against(folder, new, how.rules, how.lint.config)


def _fixtures_or_job(place: Path) -> list[Path]:
    """Return the fixtures at or below a place, or the job that it is."""
    try:
        return find_fixtures([place])
    except UsageError:
        if is_job(place):
            return [place]
        raise


def _are_jobs(folder: Path, against: Path, step_ns: int | None) -> bool:
    """Return whether both are jobs of several ranks; refuse one that is alone."""
    jobs = [is_job(path) for path in (folder, against)]
    if jobs[0] != jobs[1]:
        one, other = (folder, against) if jobs[0] else (against, folder)
        msg = (
            f"{one} has the traces of several ranks, and {other} has not: give two of"
            " a kind"
        )
        raise UsageError(msg)
    if all(jobs) and step_ns:
        msg = "--step-ms is of one trace, and these are jobs: leave it out"
        raise UsageError(msg)
    return all(jobs)


def _checked(folder: Path, how: Checking) -> FixtureResult:
    if not is_job(folder):
        cache = how.lint.load.use_cache
        return check(folder, how.rules, how.lint.config, update=how.update, cache=cache)
    try:
        job = analysed_job(folder, how.lint.load)
    except TraceqError as error:
        return FixtureResult(folder, (Difference("error", str(error)),))
    return check_job(folder, job, how.rules, how.lint.config, update=how.update)


def _ran(folder: Path, how: Checking, running: Running, to: Path) -> FixtureResult:
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
        if why := why_not_to_run(folder, cpu=running.cpu, update=how.update):
            return unable(folder, why)
        output.say(f"running {' '.join(command.words)}")
        out = to / folder.resolve().name
        made = run_program(command, out, cpu=running.cpu, timeout_s=running.timeout_s)
        new = load_recording(made, structs.replace(how.lint.load, use_cache=False))
        return check_run(folder, new, how.rules, how.lint.config, update=how.update)
    except ProgramError as error:
        for line in error.last_lines:
            output.say(f"| {line}")
        return unable(folder, str(error))
    except TraceqError as error:
        return unable(folder, str(error))
