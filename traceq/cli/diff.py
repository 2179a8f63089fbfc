"""`traceq diff`: what changed from one recording to another, and why."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.cli import output
from traceq.cli.options import (
    FORMAT,
    Captures,
    ConfigFile,
    Kernels,
    NoCache,
    OutputFile,
    Overwrite,
    Own,
    Root,
    StepsBy,
    paths_argument,
)
from traceq.cli.writing import deliver, refuse_to_lose
from traceq.differ.compare import (
    Half,
    MemoryChange,
    compare,
    compare_snapshots,
    examine,
)
from traceq.differ.jobs import JobDiff, JobHalf, compare_jobs
from traceq.differ.limits import broken, read_limits
from traceq.errors import InputError, UsageError
from traceq.given import local, refuse_two_stdins
from traceq.linter.engine import lint
from traceq.linter.pack import load_rules
from traceq.opening.jobs import analysed_job, is_job
from traceq.opening.recordings import load_recording
from traceq.opening.settings import configuration, use_captures, use_kernels, use_own
from traceq.opening.trust import named
from traceq.ranks.findings import lint_job
from traceq.report.diff import concise as diff_concise
from traceq.report.diff import content as diff_content
from traceq.report.diff import full as diff_full
from traceq.report.diff import github as diff_github
from traceq.report.diff import html as diff_html
from traceq.report.diff import jobs as diff_jobs
from traceq.report.diff import json as diff_json
from traceq.report.diff import markdown as diff_markdown
from traceq.report.diff import snapshots as diff_snapshots
from traceq.report.located import located_finding
from traceq.repository import find_root, read_repository
from traceq.units import NS_PER_MS
from traceq.watching import expect, tell

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from traceq.differ.compare import Diff
    from traceq.differ.limits import Broken
    from traceq.linter.config import Config
    from traceq.linter.engine import Outcome
    from traceq.linter.pack import Rules
    from traceq.recording import Recording

    Compared: TypeAlias = Diff | MemoryChange | JobDiff

_BROKEN = 1


class Format(str, Enum):
    """How to write the comparison."""

    full = "full"
    concise = "concise"
    json = "json"
    github = "github"
    markdown = "markdown"
    html = "html"


def command(  # noqa: PLR0913 - one parameter an option
    before: Annotated[
        Path,
        paths_argument(
            "A trace, a run folder, a folder with the ranks of a job, or a memory"
            " snapshot.",
            "BEFORE",
        ),
    ],
    after: Annotated[Path, paths_argument("Another one of the same program.", "AFTER")],
    *,
    form: Annotated[Format, FORMAT] = Format.full,
    file: OutputFile = None,
    overwrite: Overwrite = False,
    step_ms: Annotated[
        str | None,
        typer.Option(
            help="Step times measured without the profiler, before and after.",
            metavar="MS,MS",
        ),
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            help=(
                "Exit 1 where something grew by more than this:"
                " slower:5%, launches:+10, memory:+2%, new-findings; also busy, idle,"
                " kernels, syncs, copies; of jobs slower, waiting and new-findings."
            ),
            metavar="LIMITS",
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
    """Show what changed in a step from one recording to another, and why.

    The causes add up to the change. Exits 1 if a limit of --fail-on is broken, 2 if
    traceq could not work, else 0.
    """
    limits = read_limits(fail_on or "")
    steps = _steps(step_ms)
    refuse_to_lose(file, [before, after], overwrite=overwrite)
    wanted = configuration(config)
    use_own(own, wanted, steps_by)
    use_captures(captures)
    use_kernels(kernels)
    rules = load_rules(wanted.packs)
    paths = _local((before, after), cache=not no_cache)
    if _are_jobs(paths):
        _refuse_for_jobs(form, step_ms)
        halves = [_job_half(path, rules, wanted, cache=not no_cache) for path in paths]
        _warn_of_crashes([half.outcome for half in halves])
        found: Compared = compare_jobs(*halves)
    else:
        found = compared(paths, steps, rules, wanted, cache=not no_cache)
    found = _in_repository(found, root)
    failed = broken(found, limits)
    text = _rendered(found, failed, form, to_file=file is not None)
    first = named(wanted.packs) if form is Format.full else ""
    deliver(first + text, file)
    if file is not None:
        for reason in diff_content.failures(failed):
            output.say(reason)
    if failed:
        sys.exit(_BROKEN)


def _are_jobs(paths: tuple[Path, Path]) -> bool:
    """Return whether both are jobs of several ranks; refuse one that is alone."""
    jobs = [path for path in paths if is_job(path)]
    if len(jobs) == 1:
        (other,) = (path for path in paths if path not in jobs)
        msg = (
            f"{jobs[0]} has the traces of several ranks, and {other} has not: give two"
            " of a kind"
        )
        raise InputError(msg)
    return bool(jobs)


def _refuse_for_jobs(form: Format, step_ms: str | None) -> None:
    if form is Format.html:
        there = ", ".join([Format.full.value, *(one.value for one in _OF_JOBS)])
        msg = f"--format html is not there for two jobs of many ranks; there is {there}"
        raise UsageError(msg)
    if step_ms is not None:
        msg = "--step-ms is of one trace, and these are jobs: leave it out"
        raise UsageError(msg)


def _job_half(path: Path, rules: Rules, config: Config, *, cache: bool) -> JobHalf:
    analysis = analysed_job(path, cache=cache)
    report = lint_job(str(path), analysis, rules, config)
    return JobHalf(str(path), analysis, report.outcomes[0])


def _in_repository(found: Compared, root: Path | None) -> Compared:
    """Return the comparison with the files of the repository in its findings."""
    folder = root or find_root(Path.cwd())
    if folder is None:
        return found
    repository = read_repository(folder)
    changes = tuple(
        replace(
            change,
            before=change.before and located_finding(change.before, repository),
            after=change.after and located_finding(change.after, repository),
        )
        for change in found.findings.changes
    )
    return replace(found, findings=replace(found.findings, changes=changes))


def _rendered(
    found: Compared,
    failed: Sequence[Broken],
    form: Format,
    *,
    to_file: bool,
) -> str:
    width = None if to_file else output.width()
    color = not to_file and output.color()
    if isinstance(found, JobDiff):
        if form is Format.full:
            return diff_jobs.full(found, failed, width=width, color=color)
        return _OF_JOBS[form](found, failed)
    if isinstance(found, MemoryChange):
        if form is Format.full:
            return diff_snapshots.full(found, failed, width=width, color=color)
        return _OF_SNAPSHOTS[form](found, failed)
    if form is Format.full:
        return diff_full.render(found, failed, width=width, color=color)
    return _OF_TRACES[form](found, failed)


_OF_TRACES = {
    Format.concise: diff_concise.render,
    Format.json: diff_json.render,
    Format.github: diff_github.render,
    Format.markdown: diff_markdown.render,
    Format.html: diff_html.render,
}
_OF_JOBS = {
    Format.concise: diff_jobs.concise,
    Format.json: diff_jobs.json,
    Format.github: diff_jobs.github,
    Format.markdown: diff_jobs.markdown,
}
_OF_SNAPSHOTS = {
    Format.concise: diff_snapshots.concise,
    Format.json: diff_snapshots.json,
    Format.github: diff_snapshots.github,
    Format.markdown: diff_snapshots.markdown,
    Format.html: diff_snapshots.html,
}


def _warn_of_crashes(outcomes: Sequence[Outcome]) -> None:
    """Warn of rules that crashed: what they look for may have come or gone."""
    for outcome in outcomes:
        for rule in outcome.crashed:
            output.say(
                f"{rule.code} crashed on {outcome.name}: {rule.error}; its"
                " findings are not compared"
            )


def _steps(text: str | None) -> tuple[int | None, int | None]:
    """Return the two step times that were given, in nanoseconds."""
    if text is None:
        return None, None
    try:
        first, second = (round(float(part) * NS_PER_MS) for part in text.split(","))
    except (ValueError, OverflowError):
        first = second = 0
    if first <= 0 or second <= 0:
        msg = f"--step-ms {text}: give two times in milliseconds, as 12.3,9.1"
        raise UsageError(msg)
    return first, second


def compared(
    paths: tuple[Path, Path],
    steps: tuple[int | None, int | None],
    rules: Rules,
    config: Config,
    *,
    cache: bool,
) -> Diff | MemoryChange:
    """Read both and compare them; the first is analysed while the second is read."""

    def analysed(recording: Recording) -> Half | Outcome:
        outcome = lint([recording], rules, config, brief=True).outcomes[0]
        return examine(recording, outcome) if recording.trace else outcome

    # The first is worked on while the second is read.
    expect(2, 1)
    with ThreadPoolExecutor(1) as background:
        before = _recording(paths[0], steps[0], cache=cache)
        waiting = background.submit(analysed, before)
        after = _recording(paths[1], steps[1], cache=cache)
        second = analysed(after)
        tell("analysing the first")
        first = waiting.result()
    if isinstance(first, Half) and isinstance(second, Half):
        _warn_of_crashes([first.outcome, second.outcome])
        tell("comparing")
        return compare(first, second)
    if isinstance(first, Half) or isinstance(second, Half):
        without = paths[1] if isinstance(first, Half) else paths[0]
        msg = f"{without} has no trace, and the other one has: give two of a kind"
        raise InputError(msg)
    _warn_of_crashes([first, second])
    return compare_snapshots((before, after), (first, second))


def _local(paths: tuple[Path, Path], *, cache: bool) -> tuple[Path, Path]:
    """Return both on this machine."""
    refuse_two_stdins(paths)
    # What is missing is said before the other one is read, which may take long.
    return _here(paths[0], cache=cache), _here(paths[1], cache=cache)


def _here(path: Path, *, cache: bool) -> Path:
    with output.reading(path.name) as progress:
        here = local(path, cache=cache, progress=progress)
    if not here.exists():
        _recording(here, None, cache=cache)
    return here


def _recording(path: Path, step_ns: int | None, *, cache: bool) -> Recording:
    recording = load_recording(path, log=None, cache=cache)
    return replace(recording, step_ns=step_ns or recording.step_ns)
