"""Changes from one recording to another, and their causes: ``traceq.diff``."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from traceq.api import settings
from traceq.api.preload import importing, rules_of
from traceq.api.result import Name, Names, Result, path, paths, several
from traceq.common.git_repository import find_root, read_repository
from traceq.common.progress import (
    collect_notices,
    defer_notices,
    expect,
    notify,
    reading,
    report_progress,
)
from traceq.differ.limits import broken, read_limits
from traceq.errors import InputError, UsageError
from traceq.inputs.discovery import localize, refuse_two_stdins
from traceq.inputs.display_path import parse_path
from traceq.linter.trust import named
from traceq.report.repository_paths import located_finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from threading import Thread

    from traceq.api.settings import LintOptions
    from traceq.differ.compare import Diff, Half, MemoryChange
    from traceq.differ.findings import FindingChange
    from traceq.differ.jobs import JobDiff
    from traceq.differ.limits import Broken, Limit
    from traceq.inputs.options import LoadOptions
    from traceq.linter.config import Config
    from traceq.linter.pack import Rules
    from traceq.model.lint_report import RecordingReport
    from traceq.model.recording import Recording
    from traceq.report.base.content import Content

Compared: TypeAlias = "Diff | MemoryChange | JobDiff"
_Steps: TypeAlias = "tuple[int | None, int | None]"
_NEEDED = ("traceq.differ.compare", "traceq.report.diff.full")


@dataclass(frozen=True, kw_only=True, repr=False)
class DiffResult(Result):
    """Changes from one recording to another: traces, memory snapshots or jobs."""

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
        full = _report(self.compared, "full")
        text = full(self.compared, self.broken, width=width, color=color)
        return named(self.packs) + text

    def json(self) -> str:
        """Return the JSON."""
        return _report(self.compared, "json")(self.compared, self.broken)

    def contents(self) -> Sequence[Content]:
        """Return what a notebook shows."""
        from traceq.differ.compare import Diff  # noqa: PLC0415 - see _NEEDED
        from traceq.report.diff.content import content  # noqa: PLC0415

        if isinstance(self.compared, Diff):
            return [content(self.compared, self.broken)]
        return ()


def _report(compared: Compared, form: str) -> Callable[..., str]:
    """Return what writes a comparison in a form."""
    from traceq.differ.compare import Diff, MemoryChange  # noqa: PLC0415

    if isinstance(compared, Diff):
        return import_module(f"traceq.report.diff.{form}").render
    module = "snapshots" if isinstance(compared, MemoryChange) else "jobs"
    return getattr(import_module(f"traceq.report.diff.{module}"), form)


def diff(
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
    rank: int | None = None,
    root: Name | None = None,
    force: bool = False,
    cache: bool = True,
) -> DiffResult:
    """Return what changed in a step from one recording to another, and why.

    Args:
        before: A trace, a run folder, a folder with the ranks of a job, or a memory
            snapshot.
        after: Another one of the same program.
        step_ms: Step times measured without the profiler, before and after, in ms.
        fail_on: Limits, as ``slower:5%,launches:+10,new-findings``.
        config: Configuration to use instead of the nearest traceq.toml.
        captures: Traces in which the CUDA graphs were captured that the recording
            replays; a run folder has its own.
        kernels: Folder with the code that inductor generated, for traces without a run
            folder.
        own: Packages, or folders of them, that are your own code, not a library.
        steps_by: Origin of the steps: ``profiler``, ``annotation``, ``optimizer``,
            ``repeats``, ``graph`` or ``none``; by default the first that has any.
        rank: Rank to read of a run folder or an Nsight Systems export; by default the
            lowest.
        root: Folder of the source; by default the git repository around the working
            directory.
        force: Compare recordings of different programs.
        cache: Read and write the cache.

    Raises:
        TraceqError: The work cannot be done, for the reason in its one sentence.

    Examples:
        >>> result = diff("fixtures/attn_mask_fmha", "fixtures/twins/attn_flash")
        >>> result.compared.verdict
        'faster'
        >>> [(change.state, change.finding.code) for change in result.findings]
        [('gone', 'ATT001')]

    """
    limits = read_limits(fail_on)
    with collect_notices() as notes:
        wanted = settings.configuration(path(config))
        load = settings.load_options(
            wanted,
            own=several(own),
            steps_by=steps_by,
            captures=paths(captures),
            kernels=path(kernels),
            rank=rank,
            cache=cache,
        )
        options = settings.LintOptions(config=wanted, load=load, root=path(root))
        two = (parse_path(before), parse_path(after))
        result = diff_files(two, options, step_ms=step_ms, limits=limits, force=force)
    return replace(result, notes=tuple(notes))


def diff_files(
    two: tuple[Path, Path],
    options: LintOptions,
    *,
    step_ms: tuple[float, float] | None = None,
    limits: tuple[Limit, ...] = (),
    force: bool = False,
) -> DiffResult:
    """Return the changes from one recording to another, as :func:`diff`."""
    packs = options.config.packs
    steps = tuple(map(settings.nanoseconds, step_ms or (None, None)))
    with collect_notices() as notes:
        # A pack may be broken, which is to be known before a large trace is read.
        rules = rules_of(packs) if packs else None
        two = _local(two, options.load)
        if _are_jobs(two):
            if step_ms is not None:
                msg = "--step-ms is of one trace, and these are jobs: leave it out"
                raise UsageError(msg)
            change: Compared = _jobs(two, rules, options)
        else:
            change = _compared(two, (steps[0], steps[1]), rules, options, force=force)
        change = _in_repository(change, options.root)
    return DiffResult(
        compared=change,
        broken=tuple(broken(change, limits)),
        packs=packs,
        notes=tuple(notes),
    )


def _are_jobs(two: tuple[Path, Path]) -> bool:
    """Return whether both are jobs of several ranks; refuse one that is alone."""
    if not any(item.is_dir() for item in two):
        return False
    from traceq.ranks.load_job import is_job  # noqa: PLC0415 - few compare jobs

    jobs = [item for item in two if is_job(item)]
    if len(jobs) == 1:
        (other,) = (item for item in two if item not in jobs)
        msg = (
            f"{jobs[0]} has the traces of several ranks, and {other} has not: give two"
            " of a kind"
        )
        raise InputError(msg)
    return bool(jobs)


def _jobs(two: tuple[Path, Path], rules: Rules | None, options: LintOptions) -> JobDiff:
    from traceq.differ.jobs import JobHalf, compare_jobs  # noqa: PLC0415 - as above
    from traceq.ranks.findings import lint_job  # noqa: PLC0415
    from traceq.ranks.load_job import analysed_job  # noqa: PLC0415

    halves = []
    for folder in two:
        analysis = analysed_job(folder, options.load)
        report = lint_job(str(folder), analysis, rules or rules_of(()), options.config)
        halves.append(JobHalf(str(folder), analysis, report.outcomes[0]))
    _warn_of_crashes([half.outcome for half in halves])
    return compare_jobs(*halves)


def _in_repository(compared: Compared, root: Path | None) -> Compared:
    """Return the comparison with the files of the repository in its findings."""
    folder = root or find_root(Path.cwd())
    if folder is None:
        return compared
    repository = read_repository(folder)
    changes = tuple(
        replace(
            change,
            before=change.before and located_finding(change.before, repository),
            after=change.after and located_finding(change.after, repository),
        )
        for change in compared.findings.changes
    )
    return replace(compared, findings=replace(compared.findings, changes=changes))


def _warn_of_crashes(outcomes: Sequence[RecordingReport]) -> None:
    """Warn of rules that crashed: what they look for may have come or gone."""
    for outcome in outcomes:
        for rule in outcome.crashed:
            notify(
                f"{rule.code} crashed on {outcome.name}: {rule.error}; its"
                " findings are not compared"
            )


def _compared(
    two: tuple[Path, Path],
    steps: _Steps,
    rules: Rules | None,
    options: LintOptions,
    *,
    force: bool,
) -> Diff | MemoryChange:
    """Read and analyse both, at once, and compare them."""

    def analysed(which: int, ready: Thread) -> tuple[Recording, Half | RecordingReport]:
        recording = _recording(two[which], steps[which], options.load)
        ready.join()
        return recording, _analysed(recording, rules or rules_of(()), options.config)

    def analysed_quietly(
        ready: Thread,
    ) -> tuple[Recording, Half | RecordingReport, list[str]]:
        with defer_notices() as notes:
            recording, half = analysed(1, ready)
        return recording, half, notes

    # Who watches sees the first.
    expect(1)
    with importing(*_NEEDED) as ready, ThreadPoolExecutor(1) as background:
        waiting = background.submit(analysed_quietly, ready)
        before, first = analysed(0, ready)
        report_progress("analysing the second")
        after, second, second_notes = waiting.result()
    for sentence in second_notes:
        notify(sentence)
    if not force:
        _refuse_others(before, after)
    return _compare((before, after), (first, second))


def _refuse_others(before: Recording, after: Recording) -> None:
    """Refuse two programs that have nothing in common."""
    from traceq.differ.same_program import in_common  # noqa: PLC0415 - see _NEEDED

    if before.trace is None or after.trace is None:
        return
    if in_common(before.trace, after.trace) is False:
        msg = (
            f"{before.name} and {after.name} are different programs: they share no"
            " class of modules, no function and no shape of a weight; --force compares"
            " them anyway"
        )
        raise UsageError(msg)


def _analysed(
    recording: Recording, rules: Rules, config: Config
) -> Half | RecordingReport:
    """Return what is known of one recording alone."""
    from traceq.differ.compare import examine  # noqa: PLC0415 - see _NEEDED
    from traceq.linter.engine import lint  # noqa: PLC0415

    outcome = lint([recording], rules, config, brief=True).outcomes[0]
    return examine(recording, outcome) if recording.trace else outcome


def _compare(
    two: tuple[Recording, Recording],
    halves: tuple[Half | RecordingReport, Half | RecordingReport],
) -> Diff | MemoryChange:
    from traceq.differ.compare import (  # noqa: PLC0415 - see _NEEDED
        Half,
        compare,
        compare_snapshots,
    )

    first, second = halves
    if isinstance(first, Half) and isinstance(second, Half):
        _warn_of_crashes([first.outcome, second.outcome])
        report_progress("comparing")
        return compare(first, second)
    if isinstance(first, Half) or isinstance(second, Half):
        without = two[1] if isinstance(first, Half) else two[0]
        msg = f"{without.name} has no trace, and the other one has: give two of a kind"
        raise InputError(msg)
    _warn_of_crashes([first, second])
    return compare_snapshots(two, (first, second))


def _local(two: tuple[Path, Path], options: LoadOptions) -> tuple[Path, Path]:
    """Return both on this machine."""
    refuse_two_stdins(two)
    # What is missing is said before the other one is read, which may take long.
    return _here(two[0], options), _here(two[1], options)


def _here(path: Path, options: LoadOptions) -> Path:
    with reading(path.name) as progress:
        here = localize(path, cache=options.use_cache, progress=progress)
    if not here.exists():
        _recording(here, None, options)
    return here


def _recording(path: Path, step_ns: int | None, options: LoadOptions) -> Recording:
    from traceq.api.start_up import (  # noqa: PLC0415
        warn_of_start,
    )
    from traceq.inputs.load_recording import (  # noqa: PLC0415
        load_recording,
    )

    recording = load_recording(path, options)
    if recording.trace:
        warn_of_start(path, recording.trace)
    return replace(recording, step_ns=step_ns or recording.step_ns)
