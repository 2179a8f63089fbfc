"""What changed from one recording to another, and why: ``traceq.diff``."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from traceq.api.result import Name, Names, Result, path, paths, several
from traceq.differ.compare import (
    Diff,
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
from traceq.opening import settings
from traceq.opening.jobs import analysed_job, is_job
from traceq.opening.recordings import load_recording
from traceq.opening.trust import named
from traceq.ranks.findings import lint_job
from traceq.report.diff import content as words
from traceq.report.diff import full as diff_full
from traceq.report.diff import jobs as diff_jobs
from traceq.report.diff import json as diff_json
from traceq.report.diff import snapshots as diff_snapshots
from traceq.report.located import located_finding
from traceq.repository import find_root, read_repository
from traceq.shown import typed
from traceq.watching import expect, noted, reading, say, tell

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from traceq.differ.findings import FindingChange
    from traceq.differ.limits import Broken
    from traceq.linter.config import Config
    from traceq.linter.pack import Rules
    from traceq.outcome import Outcome
    from traceq.recording import Recording
    from traceq.report.base.content import Content

Compared: TypeAlias = "Diff | MemoryChange | JobDiff"
_Steps: TypeAlias = "tuple[int | None, int | None]"


@dataclass(frozen=True, kw_only=True, repr=False)
class DiffResult(Result):
    """How two recordings differ: of two traces, two memory snapshots or two jobs."""

    compared: Compared
    """The numbers, the causes and the findings, before and after."""
    broken: tuple[Broken, ...] = ()
    """The limits of ``fail_on`` that are broken."""
    packs: tuple[Path, ...] = ()
    """Folders of rules other than traceq's own."""

    @property
    def findings(self) -> tuple[FindingChange, ...]:
        """The findings that are new, worse, better or gone."""
        return self.compared.findings.changes

    def text(self, *, width: int | None = None, color: bool = False) -> str:
        """Return the text for a terminal of this width."""
        found, failed = self.compared, self.broken
        if isinstance(found, JobDiff):
            shown = diff_jobs.full(found, failed, width=width, color=color)
        elif isinstance(found, MemoryChange):
            shown = diff_snapshots.full(found, failed, width=width, color=color)
        else:
            shown = diff_full.render(found, failed, width=width, color=color)
        return named(self.packs) + shown

    def json(self) -> str:
        """Return the JSON."""
        found, failed = self.compared, self.broken
        if isinstance(found, JobDiff):
            return diff_jobs.json(found, failed)
        if isinstance(found, MemoryChange):
            return diff_snapshots.json(found, failed)
        return diff_json.render(found, failed)

    def contents(self) -> Sequence[Content]:
        """Return what a notebook shows."""
        found, failed = self.compared, self.broken
        if isinstance(found, Diff):
            return [words.content(found, failed)]
        return ()


def diff(  # noqa: PLR0913 - as the command's options
    before: Name,
    after: Name,
    *,
    step_ms: tuple[float, float] | None = None,
    fail_on: str = "",
    config: Name | None = None,
    captures: Names | None = None,
    kernels: Name | None = None,
    own: str | Iterable[str] | None = None,
    steps_by: str | None = None,
    root: Name | None = None,
    cache: bool = True,
) -> DiffResult:
    """Return what changed in a step from one recording to another, and why.

    >>> found = diff("fixtures/attn_mask_fmha", "fixtures/twins/attn_flash")
    >>> found.compared.verdict
    'faster'
    >>> [(change.state, change.finding.code) for change in found.findings]
    [('gone', 'ATT001')]

    ``before`` and ``after`` are two traces, two run folders, two memory snapshots, or
    two folders with the ranks of a job. ``step_ms`` are the two step times measured
    without the profiler, and ``fail_on`` limits as ``slower:5%,new-findings``, of
    which ``broken`` has those that are broken; the rest is as of :func:`traceq.lint`.

    Raises :class:`traceq.errors.TraceqError` with one sentence for what cannot be
    done.
    """
    limits = read_limits(fail_on)
    steps = tuple(map(settings.nanoseconds, step_ms or (None, None)))
    with noted() as notes:
        wanted = settings.configuration(path(config))
        rules = load_rules(wanted.packs)
        with settings.asked(
            wanted,
            own=several(own),
            steps_by=steps_by,
            captures=paths(captures),
            kernels=path(kernels),
        ):
            two = _local((typed(before), typed(after)), cache=cache)
            if _are_jobs(two):
                found: Compared = _jobs(two, rules, wanted, step_ms, cache=cache)
            else:
                found = _compared(two, (steps[0], steps[1]), rules, wanted, cache=cache)
        found = _in_repository(found, path(root))
    return DiffResult(
        compared=found,
        broken=tuple(broken(found, limits)),
        packs=wanted.packs,
        notes=tuple(notes),
    )


def _are_jobs(two: tuple[Path, Path]) -> bool:
    """Return whether both are jobs of several ranks; refuse one that is alone."""
    jobs = [one for one in two if is_job(one)]
    if len(jobs) == 1:
        (other,) = (one for one in two if one not in jobs)
        msg = (
            f"{jobs[0]} has the traces of several ranks, and {other} has not: give two"
            " of a kind"
        )
        raise InputError(msg)
    return bool(jobs)


def _jobs(
    two: tuple[Path, Path],
    rules: Rules,
    config: Config,
    step_ms: tuple[float, float] | None,
    *,
    cache: bool,
) -> JobDiff:
    if step_ms is not None:
        msg = "--step-ms is of one trace, and these are jobs: leave it out"
        raise UsageError(msg)
    halves = []
    for folder in two:
        analysis = analysed_job(folder, cache=cache)
        report = lint_job(str(folder), analysis, rules, config)
        halves.append(JobHalf(str(folder), analysis, report.outcomes[0]))
    _warn_of_crashes([half.outcome for half in halves])
    return compare_jobs(*halves)


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


def _warn_of_crashes(outcomes: Sequence[Outcome]) -> None:
    """Warn of rules that crashed: what they look for may have come or gone."""
    for outcome in outcomes:
        for rule in outcome.crashed:
            say(
                f"{rule.code} crashed on {outcome.name}: {rule.error}; its"
                " findings are not compared"
            )


def _compared(
    two: tuple[Path, Path], steps: _Steps, rules: Rules, config: Config, *, cache: bool
) -> Diff | MemoryChange:
    """Read both and compare them; the first is analysed while the second is read."""

    def analysed(recording: Recording) -> Half | Outcome:
        outcome = lint([recording], rules, config, brief=True).outcomes[0]
        return examine(recording, outcome) if recording.trace else outcome

    # The first is worked on while the second is read.
    expect(2, 1)
    with ThreadPoolExecutor(1) as background:
        before = _recording(two[0], steps[0], cache=cache)
        waiting = background.submit(analysed, before)
        after = _recording(two[1], steps[1], cache=cache)
        second = analysed(after)
        tell("analysing the first")
        first = waiting.result()
    if isinstance(first, Half) and isinstance(second, Half):
        _warn_of_crashes([first.outcome, second.outcome])
        tell("comparing")
        return compare(first, second)
    if isinstance(first, Half) or isinstance(second, Half):
        without = two[1] if isinstance(first, Half) else two[0]
        msg = f"{without} has no trace, and the other one has: give two of a kind"
        raise InputError(msg)
    _warn_of_crashes([first, second])
    return compare_snapshots((before, after), (first, second))


def _local(two: tuple[Path, Path], *, cache: bool) -> tuple[Path, Path]:
    """Return both on this machine."""
    refuse_two_stdins(two)
    # What is missing is said before the other one is read, which may take long.
    return _here(two[0], cache=cache), _here(two[1], cache=cache)


def _here(given: Path, *, cache: bool) -> Path:
    with reading(given.name) as progress:
        here = local(given, cache=cache, progress=progress)
    if not here.exists():
        _recording(here, None, cache=cache)
    return here


def _recording(given: Path, step_ns: int | None, *, cache: bool) -> Recording:
    recording = load_recording(given, log=None, cache=cache)
    return replace(recording, step_ns=step_ns or recording.step_ns)
