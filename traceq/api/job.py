"""Stragglers among the ranks of a job: ``traceq.job``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from traceq.api import settings
from traceq.api.result import Name, Names, Result, path, paths, several
from traceq.common.progress import collect_notices, notify
from traceq.errors import TraceqError
from traceq.inputs.load_recording import load_trace_with_notices
from traceq.linter.engine import lint as lint_recordings
from traceq.linter.pack import load_rules
from traceq.model.recording import Recording
from traceq.ranks.findings import lint_job
from traceq.ranks.load_job import analysed, ranks_in
from traceq.report.ranks import json as ranks_json
from traceq.report.ranks import text as ranks_text
from traceq.report.repository_paths import with_sources

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from traceq.api.settings import LintOptions
    from traceq.model.finding import Finding
    from traceq.model.lint_report import Report
    from traceq.ranks.analysis import Analysis


@dataclass(frozen=True, kw_only=True, repr=False)
class JobResult(Result):
    """Waits of a job's ranks, and the findings on the job."""

    analysis: Analysis
    """The ranks, what they wait for and why, and the job with each cause removed."""
    report: Report

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings on the job, worst first."""
        return tuple(
            finding for outcome in self.report.outcomes for finding in outcome.findings
        )

    def text(self, *, width: int | None = None, color: bool = False) -> str:
        """Return the text for a terminal of this width."""
        return ranks_text.render(self.analysis, self.report, width=width, color=color)

    def json(self) -> str:
        """Return the JSON."""
        return ranks_json.render(self.analysis, self.report)


def job(
    recordings: Names,
    *,
    fail_on: str | None = None,
    config: Name | None = None,
    own: str | Iterable[str] | None = None,
    steps_by: str | None = None,
    findings: bool = False,
    on: str | None = None,
    cache: bool = True,
) -> JobResult:
    """Return which ranks of a job hold the others up, by how much, and why.

    Args:
        recordings: The traces of the ranks: a folder, an archive or a run folder of
            them, or files.
        fail_on: Lowest severity that fails: ``info``, ``warning`` or ``error``.
        config: Configuration to use instead of the nearest traceq.toml.
        own: Packages, or folders of them, that are your own code, not a library.
        steps_by: Origin of the steps: ``profiler``, ``annotation``, ``optimizer``,
            ``repeats``, ``graph`` or ``none``; by default the first that has any.
        findings: Lint each rank, too.
        on: Address of a Dask scheduler whose workers read the traces.
        cache: Read and write the cache.

    Raises:
        TraceqError: The work cannot be done, for the reason in its one sentence.

    """
    files = paths(recordings)
    with collect_notices() as notes:
        wanted = settings.overridden(
            settings.configuration(path(config)), fail_on=fail_on
        )
        load = settings.load_options(
            wanted, own=several(own), steps_by=steps_by, cache=cache
        )
        options = settings.LintOptions(config=wanted, load=load)
        result = analysed_files(files, options, findings=findings, on=on)
    return replace(result, notes=tuple(notes))


def analysed_files(
    files: Sequence[Path],
    options: LintOptions,
    *,
    findings: bool = False,
    on: str | None = None,
) -> JobResult:
    """Return the analysis of a job's ranks, and the findings on it, as :func:`job`."""
    config = options.config
    with collect_notices() as notes:
        rules = load_rules(config.packs)
        analysis = analysed(files, options.load, findings=findings, on=on)
        report = lint_job(_name(files), analysis, rules, config)
    return JobResult(analysis=analysis, report=report, notes=tuple(notes))


def lint_ranks(
    files: Sequence[Path],
    analysis: Analysis,
    numbers: Collection[int],
    options: LintOptions,
) -> Iterator[tuple[int, Recording, Report]]:
    """Yield some ranks of an analysed job, each linted on its own, by number.

    A rank that cannot be read a second time is left out, and a note says why.
    """
    rules = load_rules(options.config.packs)
    by_path = dict(analysis.job.ranks.select("path", "number").iter_rows())
    for file, rank in ranks_in(files, cache=options.load.use_cache):
        number = by_path.get(str(file)) if rank is None else rank
        if number is None or number not in numbers:
            continue
        try:
            trace = load_trace_with_notices(file, options.load, rank=rank)
        except TraceqError as error:
            notify(str(error))
            continue
        name = str(file) if rank is None else f"{file}, rank {rank}"
        recording = Recording(name, trace, step_ns=trace.step_ns)
        report = lint_recordings([recording], rules, options.config)
        sources = {name: trace.rank.sources} if trace.rank else {}
        yield number, recording, with_sources(report, sources)


def _name(files: Sequence[Path]) -> str:
    more = len(files) - 1
    return str(files[0]) + (f" and {more} more" if more else "")
