"""`traceq diff`: changes from one recording to another, and their causes."""

from __future__ import annotations

import sys
from enum import Enum
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.cli import output
from traceq.cli.deliver import deliver, refuse_to_lose, renderer
from traceq.cli.options import (
    Captures,
    ConfigFile,
    Kernels,
    NoCache,
    OutputFile,
    Overwrite,
    Own,
    RankNumber,
    Root,
    StepsBy,
    format_option,
    paths_argument,
)
from traceq.errors import UsageError

if TYPE_CHECKING:
    from traceq.api.diff import DiffResult

_BROKEN = 1


class Format(str, Enum):
    """Formats of the comparison."""

    full = "full"
    concise = "concise"
    json = "json"
    github = "github"
    markdown = "markdown"
    html = "html"


def _limits(incomplete: str) -> list[str]:
    """Return completions of the last limit of several, as in slower:5%,mem."""
    from traceq.differ.limits import NAMES

    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in NAMES if name.startswith(last)]


def command(
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
    form: Annotated[Format, format_option(Format)] = Format.full,
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
            autocompletion=_limits,
        ),
    ] = None,
    config: ConfigFile = None,
    captures: Captures = None,
    kernels: Kernels = None,
    own: Own = None,
    steps_by: StepsBy = None,
    root: Root = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare two different programs, too.")
    ] = False,
    rank: RankNumber = None,
    no_cache: NoCache = False,
) -> None:
    """Show what changed in a step from one recording to another, and why.

    The causes add up to the change. Exits 1 if a limit of --fail-on is broken, 2 if
    traceq could not work, else 0.
    """
    from traceq.api import settings
    from traceq.api.diff import diff_files
    from traceq.differ.limits import read_limits

    steps = _steps(step_ms)
    refuse_to_lose(file, [before, after], overwrite=overwrite)
    limits = read_limits(fail_on or "")
    wanted = settings.configuration(config)
    load = settings.load_options(
        wanted,
        own=own,
        steps_by=steps_by,
        captures=captures,
        kernels=kernels,
        rank=rank,
        cache=not no_cache,
    )
    options = settings.LintOptions(config=wanted, load=load, root=root)
    two = (before, after)
    result = diff_files(two, options, step_ms=steps, limits=limits, force=force)
    deliver(_rendered(result, form, to_file=file is not None), file)
    if file is not None:
        from traceq.report.diff import content as diff_content

        for reason in diff_content.failures(result.broken):
            output.say(reason)
    if result.broken:
        sys.exit(_BROKEN)


def _rendered(result: DiffResult, form: Format, *, to_file: bool) -> str:
    from traceq.differ.compare import Diff, MemoryChange

    change, failed = result.compared, result.broken
    if form is Format.full:
        width, color = output.screen(to_file=to_file)
        return result.text(width=width, color=color)
    if form is Format.json:
        return result.json()
    if isinstance(change, Diff):
        return renderer(_OF_TRACES[form])(change, failed)
    if isinstance(change, MemoryChange):
        return renderer(_OF_SNAPSHOTS[form])(change, failed)
    return renderer(_OF_JOBS[form])(change, failed)


_OF_TRACES = {
    Format.concise: "diff.concise:render",
    Format.github: "diff.github:render",
    Format.markdown: "diff.markdown:render",
    Format.html: "page.views:diff_page",
}
_OF_JOBS = {
    Format.concise: "diff.jobs:concise",
    Format.github: "diff.jobs:github",
    Format.markdown: "diff.jobs:markdown",
    Format.html: "page.views:jobs_page",
}
_OF_SNAPSHOTS = {
    Format.concise: "diff.snapshots:concise",
    Format.github: "diff.snapshots:github",
    Format.markdown: "diff.snapshots:markdown",
    Format.html: "page.views:snapshots_page",
}


def _steps(text: str | None) -> tuple[float, float] | None:
    """Return the two step times that were given."""
    if text is None:
        return None
    try:
        first, second = (float(part) for part in text.split(","))
    except ValueError:
        first = second = 0.0
    if not all(0 < side < inf for side in (first, second)):
        msg = f"--step-ms {text}: give two times in milliseconds, as 12.3,9.1"
        raise UsageError(msg)
    return first, second
