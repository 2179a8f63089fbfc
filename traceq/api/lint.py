"""Findings in a recording: ``traceq.lint``."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from traceq.api import settings
from traceq.api.preload import importing, rules_of
from traceq.api.result import Name, Names, Result, path, paths, several
from traceq.cache import findings as cached_findings
from traceq.common.git_repository import find_root, read_repository
from traceq.common.progress import collect_notices, notify, report_progress
from traceq.errors import TraceqError
from traceq.inputs.discovery import programs
from traceq.linter import cache_key
from traceq.linter.baseline import read_baseline, without_listed
from traceq.linter.select import find_rule, selected
from traceq.linter.trust import named
from traceq.model.lint_report import Report
from traceq.report.lint import brief as lint_brief
from traceq.report.lint import content as words
from traceq.report.lint import explain as lint_explain
from traceq.report.lint import full as lint_full
from traceq.report.repository_paths import located, with_sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from traceq.api.settings import LintOptions
    from traceq.common.git_repository import Repository
    from traceq.fix.edit import Proposal
    from traceq.inputs.discovery import Program
    from traceq.inputs.labels import Labels
    from traceq.inputs.options import LoadOptions
    from traceq.linter.baseline import BaselineEntry
    from traceq.linter.config import Config
    from traceq.linter.pack import Rules
    from traceq.model.finding import Finding
    from traceq.model.lint_report import RecordingReport
    from traceq.model.recording import Recording
    from traceq.report.base.content import Content


@dataclass(frozen=True, kw_only=True, repr=False)
class LintResult(Result):
    """The findings of one or several recordings."""

    report: Report
    """By recording: the findings, what bounds the step, skipped rules and why."""
    recordings: tuple[Recording, ...]
    """The recordings with their tables, which live as long as the result.
    None if they were not asked for."""
    packs: tuple[Path, ...] = ()
    """Folders of rules other than traceq's own."""
    repository: Path | None = None
    """The git repository that places are looked up in."""
    loaded: Rules | None = None
    """The rules that ran; none if what they found before came from the cache."""
    not_in_repository: str = ""
    """Sentence on the files of places that are not in it."""
    config: Config | None = None
    """The configuration, with the rules that were selected and ignored."""

    @property
    def rules(self) -> Rules:
        """The rules that there are, by code."""
        return self.loaded or rules_of(self.packs)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all recordings, the worst of each first."""
        return tuple(
            finding for outcome in self.report.outcomes for finding in outcome.findings
        )

    @property
    def failing(self) -> tuple[Finding, ...]:
        """The findings at or above ``fail_on``: those that make the command exit 1."""
        return tuple(self.report.failing)

    @property
    def clean(self) -> bool:
        """True if all was read, no rule crashed, and no finding fails."""
        return not (self.failing or self.unread or self.report.crashed)

    def text(
        self,
        *,
        width: int | None = None,
        color: bool = False,
        full: bool = False,
        verbose: bool = False,
    ) -> str:
        """Return a screen for a terminal of this width, of at most 30 lines.

        ``full`` is all of each finding, but one line for minor ones, and ``verbose``
        is all of these too.
        """
        report = self.report
        if full or verbose:
            text = lint_full.render(report, width=width, color=color, verbose=verbose)
        else:
            text = lint_brief.render(report, width=width, color=color)
        return named(self.packs) + text

    def explain(
        self, rule: str, *, width: int | None = None, color: bool = False
    ) -> str:
        """Return the findings of one rule in full, or why it has none."""
        code = find_rule(self.rules, rule).code
        chosen = self.config
        ran = chosen is None or code in selected(
            self.rules, chosen.select, chosen.ignore
        )
        report = self.report
        return lint_explain.render(report, code, selected=ran, width=width, color=color)

    def json(self) -> str:
        """Return the JSON."""
        from traceq.report.lint import json as lint_json  # noqa: PLC0415 - few ask

        return lint_json.render(self.report, self.proposals())

    def agent(self, *, top: int | None = None) -> str:
        """Return the findings that matter in few tokens, for a coding agent."""
        from traceq.report.lint import agent  # noqa: PLC0415 - few ask

        most = agent.TOP if top is None else top
        return agent.render(self.report, self.proposals(), top=most)

    def proposals(self) -> list[list[Proposal]]:
        """Return the source edit of each finding, by recording, where it is certain."""
        from traceq.api.edits import proposed  # noqa: PLC0415 - few ask

        return proposed(self.report, self.repository)

    def contents(self) -> Sequence[Content]:
        """Return what a notebook shows."""
        return [words.content(outcome) for outcome in self.report.outcomes]


def lint(
    recording: Names,
    *,
    log: Name | None = None,
    step_ms: float | None = None,
    labels: Labels | None = None,
    select: str | Iterable[str] | None = None,
    ignore: str | Iterable[str] | None = None,
    rules: Names | None = None,
    packs: bool = True,
    fail_on: str | None = None,
    baseline: Name | None = None,
    config: Name | None = None,
    captures: Names | None = None,
    kernels: Name | None = None,
    own: str | Iterable[str] | None = None,
    steps_by: str | None = None,
    rank: int | None = None,
    root: Name | None = None,
    tables: bool = True,
    cache: bool = True,
) -> LintResult:
    """Return what is wrong in a trace, a memory snapshot or a run folder, worst first.

    Args:
        recording: A path or several: traces, memory snapshots, logs, folders or
            archives of them, run folders, URLs.
        log: The program's log.
        step_ms: Step time measured without the profiler, in ms.
        labels: Labels and step times of the recordings, from
            ``traceq.inputs.labels.read_labels``.
        select: Codes, prefixes of codes or names of the rules to run.
        ignore: Codes, prefixes of codes or names of rules not to run.
        rules: Folders of your own rules.
        packs: Run trusted rules that the configuration names (``traceq rules
            --trust``).
        fail_on: Lowest severity that fails: ``info``, ``warning`` or ``error``.
        baseline: File of findings to hide.
        config: Configuration to use instead of the nearest traceq.toml.
        captures: Traces in which the CUDA graphs were captured that the recording
            replays; a run folder has its own.
        kernels: Folder with the code that inductor generated, for traces without a run
            folder.
        own: Packages, or folders of them, that are your own code, not a library.
        steps_by: Origin of the steps: ``profiler``, ``annotation``, ``optimizer``,
            ``repeats``, ``graph`` or ``none``; by default the first that has any.
        rank: Rank to lint of a run folder or an Nsight Systems export; by default the
            lowest.
        root: Folder of the source; by default the git repository around the working
            directory.
        tables: Load the recordings into the result. Without them, findings of an
            earlier run with the same files, settings and rules come from the cache.
        cache: Read and write the cache.

    Raises:
        TraceqError: The work cannot be done, for the reason in its one sentence.

    Examples:
        >>> result = lint("fixtures/attn_mask_fmha/trace.json.gz")
        >>> [(finding.code, finding.place.line) for finding in result.findings]
        [('ATT001', 48), ('LCH004', 65), ('FUS001', 23)]
        >>> result.findings[0].advice.split(": ")[0], result.clean
        ('in masked', False)

    """
    with collect_notices() as notes:
        wanted = settings.overridden(
            settings.configuration(path(config), packs=packs),
            select=several(select),
            ignore=several(ignore),
            fail_on=fail_on,
            rules=paths(rules),
        )
        load = settings.load_options(
            wanted,
            own=several(own),
            steps_by=steps_by,
            captures=paths(captures),
            kernels=path(kernels),
            rank=rank,
            cache=cache,
        )
        options = settings.LintOptions(
            config=wanted,
            load=load,
            log=path(log),
            step_ns=settings.nanoseconds(step_ms),
            labels=labels,
            baseline=path(baseline),
            root=path(root),
            tables=tables,
        )
        result = lint_files(paths(recording), options)
    return replace(result, notes=tuple(notes))


def lint_files(files: Sequence[Path], options: LintOptions) -> LintResult:
    """Return the findings of recordings, as :func:`lint`."""
    with collect_notices() as notes:
        result = _lint_files(files, options)
    return replace(result, notes=tuple(notes))


def _lint_files(files: Sequence[Path], options: LintOptions) -> LintResult:
    folder = options.root or find_root(Path.cwd())
    config = options.config
    with _listed(folder) as listing:
        baseline = baseline_findings(options.baseline)
        tasks, unread = _tasks(files, options)
        rules = _load(tasks, options, alone=len(tasks) == 1 and not unread)
        read = [task for task in tasks if task.outcome or task.recording]
        outcomes = _linted(read, rules, config)
        report = without_listed(
            Report.of(outcomes, config.fail_on, config.allow), baseline
        )
        report_progress("writing")
        requested = options.root is not None
        report, outside = _in_repository(report, listing, requested=requested)
    recordings = [task.recording for task in read if options.tables and task.recording]
    return LintResult(
        report=report,
        recordings=tuple(recordings),
        packs=config.packs,
        config=config,
        loaded=rules,
        repository=folder,
        not_in_repository=outside,
        unread=unread + len(tasks) - len(read),
    )


def _tasks(files: Sequence[Path], options: LintOptions) -> tuple[list[_Task], int]:
    """Return the programs of files with what is known of them, and how many are not."""
    use_cache, labels = options.load.use_cache, options.labels
    recordings, unread = programs(files, cache=use_cache)
    if labels:
        labels.refuse_unused([*files, *_places(recordings)])
    cached = use_cache and not options.tables
    code = cache_key.code_of(options.config.packs) if cached else ""
    subjects = [
        cache_key.Subject(
            recording, options.log, _step_ns(labels, recording) or options.step_ns
        )
        for recording in recordings
    ]
    return [_Task(subject, code, options) for subject in subjects], unread


def _load(tasks: Sequence[_Task], options: LintOptions, *, alone: bool) -> Rules | None:
    """Load what is not known of programs, and the rules; none if all is known."""
    known_all = tasks and all(task.outcome for task in tasks)
    packs = options.config.packs
    # A pack may be broken, which is to be known before a large trace is read.
    rules = rules_of(packs) if packs and not known_all else None
    with nullcontext() if known_all or rules else importing():
        for task in tasks:
            task.load(alone=alone)
    return None if known_all else rules or rules_of(())


@contextmanager
def _listed(root: Path | None) -> Iterator[_Listing | None]:
    """Let git list the files of a repository meanwhile, if there is one."""
    if root is None:
        yield None
        return
    listing = _Listing(root)
    try:
        yield listing
    finally:
        listing.join()


class _Listing(Thread):
    """The files of a repository, which git lists while a trace is read."""

    def __init__(self, root: Path) -> None:
        super().__init__(daemon=True)
        self._root = root
        self._repository: Repository | None = None
        self.start()

    def run(self) -> None:
        # What goes wrong here does so again, and is told, where it is needed.
        with suppress(Exception):
            self._repository = read_repository(self._root)

    def repository(self) -> Repository:
        """Wait for the list, and return it."""
        self.join()
        return self._repository or read_repository(self._root)


class _Task:
    """A program to lint, or what was found of it before."""

    def __init__(
        self, subject: cache_key.Subject, code: str, options: LintOptions
    ) -> None:
        self.subject, self.options = subject, options.load
        self.question = cache_key.question(subject, code, options.config, options.load)
        self.recording: Recording | None = None
        self.outcome: RecordingReport | None = None
        self.notes: Sequence[str] = ()
        if answer := cached_findings.load(self.question):
            self.outcome, self.notes = answer

    def load(self, *, alone: bool) -> None:
        """Load what is not known; say what there is to say either way."""
        if self.outcome:
            for sentence in self.notes:
                notify(sentence)
            return
        with collect_notices() as self.notes:
            self.recording = _loaded(self.subject, self.options, alone=alone)
        if self.recording and self.subject.step_ns:
            self.recording = replace(self.recording, step_ns=self.subject.step_ns)


def _linted(
    tasks: Sequence[_Task], rules: Rules | None, config: Config
) -> list[RecordingReport]:
    """Return the outcomes of all: those that are not known are found, and kept."""
    if rules is not None:
        # Of what is known nothing of this is needed.
        from traceq.linter.engine import lint as run_rules  # noqa: PLC0415

        new = [task.recording for task in tasks if task.recording]
        report = run_rules(new, rules, config)
        fresh = iter(with_sources(report, _sources(new)).outcomes)
        for task in tasks:
            if task.outcome is None:
                task.outcome = next(fresh)
                cached_findings.save(task.question, task.outcome, task.notes)
    return [task.outcome for task in tasks if task.outcome]


def _step_ns(labels: Labels | None, program: Program) -> int | None:
    """Return the step time that the user says of one recording."""
    return labels.step_ns(Path(program.name)) if labels else None


def _places(recordings: Sequence[Program]) -> list[Path]:
    return [Path(program.name) for program in recordings]


def baseline_findings(baseline: Path | None) -> list[BaselineEntry]:
    """Return what a baseline lists, and say if there is none where one is named."""
    if baseline is None:
        return []
    if not baseline.exists():
        notify(f"{baseline} is not there: as an empty baseline it hides nothing")
    return read_baseline(baseline)


def _loaded(
    subject: cache_key.Subject, options: LoadOptions, *, alone: bool
) -> Recording | None:
    """Load a program; one that cannot be read does not keep the others from it."""
    from traceq.inputs.load_recording import load_program  # noqa: PLC0415 - as above

    try:
        # The report itself has what was not recorded, with the rules that need it.
        return load_program(subject.program, options, log=subject.log, say_lacks=False)
    except TraceqError as error:
        if alone:
            raise
        notify(str(error))
        return None


def _sources(recordings: Sequence[Recording]) -> dict[str, Mapping[str, str]]:
    """Return the source files that run folders have, by the recordings' names."""
    ranks = {
        recording.name: recording.trace.rank
        for recording in recordings
        if recording.trace
    }
    return {name: rank.sources for name, rank in ranks.items() if rank}


def _in_repository(
    report: Report, listing: _Listing | None, *, requested: bool
) -> tuple[Report, str]:
    """Return the report with paths of the repository, and what is not in it."""
    if listing is None:
        return report, ""
    report, missing = located(report, listing.repository())
    places = [
        finding.place for outcome in report.outcomes for finding in outcome.findings
    ]
    # In a repository of another program nothing is found, nor need it be.
    if missing and (requested or any(place.path for place in places)):
        notify(missing)
    return report, missing
