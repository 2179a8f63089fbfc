"""Stragglers among the ranks of a job: ``traceq.job``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import structs

from traceq.api import settings
from traceq.api.result import Name, Names, Result, path, paths, several
from traceq.common.progress import noted, say
from traceq.errors import TraceqError
from traceq.inputs.load_recording import load_shown
from traceq.linter.config import severity
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

    from traceq.model.finding import Finding
    from traceq.model.lint_report import Report
    from traceq.ranks.analysis import Analysis


@dataclass(frozen=True, kw_only=True, repr=False)
class JobResult(Result):
    """What the ranks of a job wait for, and what rules find among them."""

    analysis: Analysis
    """The ranks, what they wait for and why, and the job with each cause removed."""
    report: Report

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings on the job, worst first."""
        return tuple(one for found in self.report.outcomes for one in found.findings)

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

    ``recordings`` are the traces of its ranks: a folder, an archive or a run folder of
    them, or files. ``findings`` lints each rank, too, and ``on`` is the address of a
    Dask scheduler whose workers read the traces; the rest is as of
    :func:`traceq.lint`. It answers what ``traceq ranks`` does.

    Raises :class:`traceq.errors.TraceqError` with one sentence for what cannot be
    done.
    """
    files = paths(recordings)
    with noted() as notes:
        wanted = settings.configuration(path(config))
        if fail_on:
            wanted = structs.replace(wanted, fail_on=severity(fail_on, "--fail-on"))
        rules = load_rules(wanted.packs)
        options = settings.load_options(
            wanted, own=several(own), steps_by=steps_by, cache=cache
        )
        analysis = analysed(files, options, findings=findings, on=on)
        report = lint_job(_name(files), analysis, rules, wanted)
    return JobResult(analysis=analysis, report=report, notes=tuple(notes))


def lint_ranks(
    recordings: Names,
    found: Analysis,
    numbers: Collection[int],
    *,
    config: Name | None = None,
    own: str | Iterable[str] | None = None,
    cache: bool = True,
) -> Iterator[tuple[int, Recording, Report]]:
    """Yield some ranks of a job one by one, each linted on its own, by number.

    The arguments are those of :func:`job`, and its analysis. A rank that cannot be read
    a second time is left out, and a note says why.
    """
    wanted = settings.configuration(path(config))
    rules = load_rules(wanted.packs)
    options = settings.load_options(wanted, own=several(own), cache=cache)
    by_path = dict(found.job.ranks.select("path", "number").iter_rows())
    for file, rank in ranks_in(paths(recordings), cache=cache):
        number = by_path.get(str(file)) if rank is None else rank
        if number is None or number not in numbers:
            continue
        try:
            trace = load_shown(file, options, rank=rank)
        except TraceqError as error:
            say(str(error))
            continue
        name = str(file) if rank is None else f"{file}, rank {rank}"
        recording = Recording(name, trace, step_ns=trace.step_ns)
        report = lint_recordings([recording], rules, wanted)
        sources = {name: trace.rank.sources} if trace.rank else {}
        yield number, recording, with_sources(report, sources)


def _name(files: Sequence[Path]) -> str:
    more = len(files) - 1
    return str(files[0]) + (f" and {more} more" if more else "")
