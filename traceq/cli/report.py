"""`traceq report`: one page to look at, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from traceq.cli import output
from traceq.cli.deliver import make_folder, refuse_to_lose, write_file
from traceq.cli.options import (
    Captures,
    ConfigFile,
    GivenLabels,
    Kernels,
    Log,
    NoCache,
    NoPacks,
    Overwrite,
    Own,
    Packs,
    RankNumber,
    Root,
    Runs,
    StepMs,
    StepsBy,
    paths_argument,
)
from traceq.common.words import counted, listed
from traceq.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from traceq.api.job import JobResult
    from traceq.model.lint_report import Report
    from traceq.model.recording import Recording
    from traceq.ranks.analysis import Analysis

_MARK = b'<meta name="generator" content="traceq '
_HEAD = 4096


def command(
    paths: Annotated[
        list[Path] | None,
        paths_argument(
            "Traces, memory snapshots, logs, folders or archives of them, run folders,"
            " URLs, or - for standard input. TRACE SNAPSHOT LOG of one program are one"
            " recording. Those of --runs, unless given."
        ),
    ] = None,
    *,
    file: Annotated[
        Path,
        typer.Option("--output", "-o", help="The page to write.", metavar="FILE"),
    ] = Path("report.html"),
    overwrite: Overwrite = False,
    step: Annotated[
        int | None,
        typer.Option(
            help="The step to draw, as in ProfilerStep#N; a typical one, unless given.",
            metavar="N",
        ),
    ] = None,
    rank_pages: Annotated[
        int,
        typer.Option(
            help="Of a job, write the pages of at most this many ranks into the folder"
            " FILE-ranks beside it; of more ranks, the latest and the earliest.",
            metavar="N",
            min=0,
        ),
    ] = 16,
    packs: Packs = None,
    no_packs: NoPacks = False,
    log: Log = None,
    step_ms: StepMs = None,
    label: GivenLabels = None,
    runs: Runs = None,
    config: ConfigFile = None,
    captures: Captures = None,
    kernels: Kernels = None,
    own: Own = None,
    steps_by: StepsBy = None,
    root: Root = None,
    rank: RankNumber = None,
    no_cache: NoCache = False,
) -> None:
    """Write one page to look at: verdict, findings, a step as a picture, flame graph.

    Several recordings are compared, by their labels too; a folder with the ranks of a
    job is shown as a job, with a page for each rank. A page is one file that asks for
    nothing from the network.
    A report that is there already is written again; any other file only with
    --overwrite.
    """
    from traceq.api import settings
    from traceq.api.job import analysed_files, lint_ranks
    from traceq.api.lint import lint_files
    from traceq.inputs.labels import labelled
    from traceq.ranks.load_job import is_job
    from traceq.report.page.build import report_page

    paths, labels = labelled(paths, label, runs)
    read = [*paths, *([log] if log else [])]
    refuse_to_lose(file, read, overwrite=overwrite or _is_report(file))
    wanted = settings.overridden(
        settings.configuration(config, packs=not no_packs), rules=packs
    )
    load = settings.load_options(
        wanted,
        own=own,
        steps_by=steps_by,
        captures=captures,
        kernels=kernels,
        rank=rank,
        cache=not no_cache,
    )
    options = settings.LintOptions(
        config=wanted,
        load=load,
        log=log,
        step_ns=settings.nanoseconds(step_ms),
        labels=labels,
        root=root,
    )
    if len(paths) == 1 and is_job(paths[0]):
        ranks = analysed_files(paths, options)
        if ranks.analysis.job.collectives.height:
            pages = _rank_files(file, ranks.analysis, rank_pages)
            for path in pages.values():
                refuse_to_lose(path, read, overwrite=overwrite or _is_report(path))
            linted = lint_ranks(paths, ranks.analysis, pages, options)
            _write_job(file, ranks, _write_ranks(file, pages, linted))
            return
    result = lint_files(paths, options)
    recordings = result.recordings
    _refuse_other_steps(step, recordings)
    labels_of_each = [
        labels.of(
            Path(recording.name), recording.trace.run if recording.trace else None
        )
        for recording in recordings
    ]
    page = report_page(recordings, result.report, step, labels_of_each)
    write_file(file, page)
    output.say(f"written to {file}")
    if result.unread:
        count = result.unread + len(recordings)
        msg = f"{result.unread} of {count} files could not be read"
        raise UsageError(msg)


def _rank_files(file: Path, analysis: Analysis, most: int) -> dict[int, Path]:
    """Return the files of the pages of ranks, by number."""
    from traceq.report.page.parts.ranks import ranks_with_pages

    folder = file.with_name(f"{file.stem}-ranks")
    numbers = ranks_with_pages(analysis, most)
    return {number: folder / f"rank-{number}.html" for number in numbers}


def _write_job(file: Path, result: JobResult, pages: Mapping[int, Path]) -> None:
    """Write the page of a job, with links to the pages of ranks that there are."""
    from traceq.report.page.views import ranks_page

    links = {
        number: quote(f"{page.parent.name}/{page.name}")
        for number, page in pages.items()
    }
    write_file(file, ranks_page(result.analysis, result.report, links))
    folders = [page.parent for page in pages.values()]
    beside = f", and the pages of {counted(len(pages), 'rank')} to "
    output.say(f"written to {file}{beside + str(folders[0]) if folders else ''}")


def _write_ranks(
    file: Path,
    pages: Mapping[int, Path],
    linted: Iterable[tuple[int, Recording, Report]],
) -> dict[int, Path]:
    """Write the pages of ranks, and return those that were written.

    It is one after the other: a job may have more ranks than memory holds.
    """
    from traceq.report.page.build import rank_page
    from traceq.report.page.section import Link

    job = Link("← The job", f"../{quote(file.name)}")
    written = {}
    for number, recording, report in linted:
        written[number] = pages[number]
        make_folder(pages[number].parent)
        write_file(pages[number], rank_page(recording, report, number, job))
    return written


def _refuse_other_steps(step: int | None, recordings: Sequence[Recording]) -> None:
    """Raise if a step is asked for that is in none of the recordings."""
    traces = [recording.trace for recording in recordings if recording.trace]
    steps = sorted({number for trace in traces for number in trace.steps["step"]})
    if step is not None and step not in steps:
        there = f"there are {listed([str(item) for item in steps], 8)}" if steps else ""
        msg = f"there is no step {step}; {there or 'the recording has none'}"
        raise UsageError(msg)


def _is_report(file: Path) -> bool:
    """Return whether a file is a page that traceq wrote, which may be written again."""
    try:
        with file.open("rb") as stream:
            return _MARK in stream.read(_HEAD)
    except OSError:
        return False
