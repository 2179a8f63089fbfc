"""Implementation of `traceq check`: comparison of fixtures with their expectations."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from traceq.api.settings import nanoseconds
from traceq.check.check import FixtureResult, check, check_against
from traceq.check.difference import Difference
from traceq.check.fixture import find_fixtures, read_fixture
from traceq.check.program import ProgramError, command_of, run_program
from traceq.check.run import check_run, unable, why_not_to_run
from traceq.cli import output
from traceq.common.dataclass import dataclass
from traceq.errors import TraceqError, UsageError
from traceq.formats.fixture_origin import ORIGIN
from traceq.inputs.load_recording import load_recording
from traceq.ranks.check_job import check_job, check_job_against
from traceq.ranks.load_job import analysed_job, is_job

if TYPE_CHECKING:
    from traceq.linter.config import Config
    from traceq.linter.pack import Rules

_NOT_RUN = (
    "it is a job of several ranks, which --run does not start: record one with traceq"
    " collect, and give it with --against"
)


@dataclass(frozen=True)
class Running:
    """How to run programs."""

    runs: Path | None
    """Where to keep what was recorded, if anywhere."""
    cpu: bool
    timeout_s: float
    update: bool


def compared(  # noqa: PLR0913 - what the command was given
    folders: list[Path],
    *,
    against: Path | None,
    step_ms: float | None,
    running: Running | None,
    rules: Rules,
    config: Config,
    update: bool,
    cache: bool,
) -> list[FixtureResult]:
    """Return what differs, for each fixture."""
    found = [one for place in folders for one in _found(place)]
    if against:
        if len(found) != 1:
            msg = f"--against takes one fixture, not {len(found)}: name its folder"
            raise UsageError(msg)
        if _are_jobs(found[0], against, step_ms):
            known, job = (
                analysed_job(path, cache=cache) for path in (found[0], against)
            )
            results = [check_job_against(found[0], known, job, rules, config)]
        else:
            new = load_recording(against, log=None, cache=cache)
            new = replace(new, step_ns=nanoseconds(step_ms) or new.step_ns)
            results = [check_against(found[0], new, rules, config)]
    elif running:
        with tempfile.TemporaryDirectory(prefix="traceq-check-") as temporary:
            to = running.runs or Path(temporary)
            results = [_ran(one, rules, config, running, to) for one in found]
    else:
        results = [
            _checked(folder, rules, config, update=update, cache=cache)
            for folder in found
        ]
    return results


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


def _ran(
    folder: Path, rules: Rules, config: Config, how: Running, to: Path
) -> FixtureResult:
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
        out = to / folder.resolve().name
        made = run_program(command, out, cpu=how.cpu, timeout_s=how.timeout_s)
        new = load_recording(made, log=None, cache=False)
        return check_run(folder, new, rules, config, update=how.update)
    except ProgramError as error:
        for line in error.last_lines:
            output.say(f"| {line}")
        return unable(folder, str(error))
    except TraceqError as error:
        return unable(folder, str(error))
