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
from traceq.check.own_program import NO_COMMAND, why_not_as_in, why_not_by_itself
from traceq.check.program import ProgramError, command_of, run_program
from traceq.check.run import both, check_run, unable, why_not_to_run
from traceq.cli import output
from traceq.errors import TraceqError, UsageError
from traceq.inputs.load_recording import load_recording
from traceq.ranks.check_job import check_job, check_job_against
from traceq.ranks.load_job import analysed_job, is_job

if TYPE_CHECKING:
    from traceq.api.settings import LintOptions
    from traceq.check.fixture import Fixture
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
    by_itself: bool = False
    """True if no option asks for runs: then only the user's own programs run."""
    base: str = ""
    """Commit that has to define a program as it is now, if any."""


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
    fixtures = [path for place in folders for path in _fixtures_or_job(place)]
    if how.against:
        return [_checked_against(fixtures, how.against, how)]
    if how.running:
        with tempfile.TemporaryDirectory(prefix="traceq-check-") as temporary:
            to = how.running.runs or Path(temporary)
            return [
                _linted_and_run(fixture, how, how.running, to) for fixture in fixtures
            ]
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


def _linted_and_run(
    folder: Path, how: Checking, running: Running, to: Path
) -> FixtureResult:
    """Lint a fixture, and run its program if it may be run; one stops no other."""
    try:
        fixture = None if is_job(folder) else read_fixture(folder)
        if fixture is None:
            if not running.by_itself:
                return unable(folder, _NOT_RUN)
            why = "it is a job of several ranks"
            return replace(_checked(folder, how), not_run=why)
        recorded = bool(fixture.trace or fixture.snapshot)
        why = _why_not(fixture, running)
        lacks = why or why_not_to_run(
            folder, cpu=_without_gpu(fixture, running), update=how.update
        )
        if lacks and running.by_itself:
            return replace(_checked(folder, how), not_run=lacks)
        linted = _checked(folder, how) if recorded and not how.update else None
        if why:
            ran = _not_run(folder, why)
        elif lacks:
            ran = unable(folder, lacks)
        else:
            ran = _ran(fixture, how, running, to)
    except TraceqError as error:
        # What lint says of it is what is wrong, unless somebody asked for a run.
        return (
            _checked(folder, how) if running.by_itself else unable(folder, str(error))
        )
    return both(linted, ran) if linted else ran


def _why_not(fixture: Fixture, running: Running) -> str:
    """Return why the program of a fixture must not be run; empty if it may."""
    if running.by_itself and (why := why_not_by_itself(fixture)):
        return why
    if command_of(fixture) is None:
        return NO_COMMAND
    return why_not_as_in(running.base, fixture) if running.base else ""


def _not_run(folder: Path, why: str) -> FixtureResult:
    skipped = Difference("skipped", f"not run: {why}", fails=False)
    return FixtureResult(folder, (skipped,), compared=False, linted=False, not_run=why)


def _without_gpu(fixture: Fixture, running: Running) -> bool:
    """Return whether the program sees no GPU, as where it was recorded."""
    return running.cpu or fixture.origin.get("gpu") == "none"


def _ran(fixture: Fixture, how: Checking, running: Running, to: Path) -> FixtureResult:
    """Run the program of a fixture and compare."""
    folder, command = fixture.folder, command_of(fixture)
    if command is None:
        return _not_run(folder, NO_COMMAND)
    output.say(f"running {' '.join(command.words)}")
    out = to / folder.resolve().name
    cpu = _without_gpu(fixture, running)
    try:
        made = run_program(command, out, cpu=cpu, timeout_s=running.timeout_s)
        new = load_recording(made, structs.replace(how.lint.load, use_cache=False))
        return check_run(folder, new, how.rules, how.lint.config, update=how.update)
    except ProgramError as error:
        for line in error.last_lines:
            output.say(f"| {line}")
        return unable(folder, str(error))
