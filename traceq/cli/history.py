"""`traceq history`: runs over time, their jumps and causes."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from traceq.cli import output
from traceq.cli.deliver import deliver, refuse_to_lose, renderer, write_file
from traceq.cli.options import (
    ConfigFile,
    NoCache,
    OutputFile,
    Overwrite,
    Own,
    Root,
    StepMs,
    StepsBy,
    format_option,
    paths_argument,
)
from traceq.errors import UsageError

if TYPE_CHECKING:
    from traceq.api.settings import LintOptions
    from traceq.history.jumps import Name

DEFAULT = Path("traceq-history.sqlite")
NumberName = Literal[
    "step", "memory", "gpu-busy", "idle", "reserved", "syncs", "kernels"
]


class Format(str, Enum):
    """Formats of reports."""

    text = "text"
    json = "json"
    markdown = "markdown"


class BisectFormat(str, Enum):
    """Formats of the next commit."""

    text = "text"
    json = "json"


Db = Annotated[
    Path,
    typer.Option("--db", help="The history: an SQLite file.", metavar="FILE"),
]
SeriesName = Annotated[
    str,
    typer.Option(
        "--series",
        help="Name of what is measured; by default the run's script and labels. Only"
        " runs of one series, GPU and number of ranks are compared.",
        metavar="NAME",
    ),
]
Commit = Annotated[
    str,
    typer.Option(
        "--commit",
        help="Commit of the program; by default the one that the run folder names, or"
        " HEAD of the repository around here.",
        metavar="COMMIT",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        help="Address of a Dask scheduler that reads the ranks of a job.",
        metavar="ADDRESS",
    ),
]


def add(
    runs: Annotated[
        list[Path],
        paths_argument(
            "A trace, a run folder, a folder with the ranks of a job, or the JSON of"
            " traceq lint.",
            "RUN...",
        ),
    ],
    *,
    db: Db = DEFAULT,
    commit: Commit = "",
    series: SeriesName = "",
    on: On = None,
    step_ms: StepMs = None,
    config: ConfigFile = None,
    own: Own = None,
    steps_by: StepsBy = None,
    root: Root = None,
    no_cache: NoCache = False,
) -> None:
    """Add the digests of runs to the history; a run that is there stays as it is."""
    from traceq.api.history import DigestOptions, add_runs
    from traceq.report.history.content import run_line

    options = _options(config, own, steps_by, root, step_ms=step_ms, cache=not no_cache)
    for added in add_runs(db, runs, options, DigestOptions(commit, series, on)):
        state = "added" if added.new else "already there"
        output.write(f"{state}: {run_line(added.digest)}\n")


def show(
    *,
    db: Db = DEFAULT,
    series: SeriesName = "",
    last: Annotated[
        int | None,
        typer.Option("--last", help="Show this many runs of each series.", min=1),
    ] = None,
    form: Annotated[Format, format_option(Format)] = Format.text,
    file: OutputFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Show one line a run, with jumps beyond the noise of their neighbours."""
    from traceq.history.series import series_in

    refuse_to_lose(file, [db], overwrite=overwrite)
    result = series_in(db, name=series, last=last)
    render = renderer(f"history.{form.value}:show")
    wide = {"width": None if file else output.width()} if form is Format.text else {}
    deliver(render(result, **wide), file)


def explain(
    before: Annotated[
        str,
        typer.Argument(
            help="A run: its number, path or commit; last, last~1.", metavar="A"
        ),
    ],
    after: Annotated[str, typer.Argument(help="Another one.", metavar="B")],
    *,
    db: Db = DEFAULT,
    digests: Annotated[
        bool,
        typer.Option(
            "--digests",
            help="Compare the digests, even if both recordings are still there.",
        ),
    ] = False,
    form: Annotated[Format, format_option(Format)] = Format.text,
    file: OutputFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Show what differs between two runs, or between the runs of two commits.

    Two recordings that are still where they were added from are compared as by traceq
    diff; others by their digests.
    """
    from traceq.history.series import explain as explained_by_digests

    refuse_to_lose(file, [db], overwrite=overwrite)
    result = explained_by_digests(db, before, after)
    if not digests and len(result.before) == len(result.after) == 1:
        from traceq.api.history import still_there

        paths = [still_there(run) for run in (result.before[0], result.after[0])]
        if paths[0] and paths[1]:
            from traceq.cli.diff import Format as DiffFormat
            from traceq.cli.diff import command as diff

            name = "full" if form is Format.text else form.value
            diff(
                paths[0],
                paths[1],
                form=DiffFormat(name),
                file=file,
                overwrite=overwrite,
            )
            return
        output.say("the recordings are gone or have changed: digests are compared")
    render = renderer(f"history.{form.value}:explain")
    wide = {"width": None if file else output.width()} if form is Format.text else {}
    deliver(render(result, **wide), file)


def report(
    *,
    db: Db = DEFAULT,
    series: SeriesName = "",
    file: Annotated[
        Path,
        typer.Option("--output", "-o", help="File to write.", metavar="FILE"),
    ] = Path("history.html"),
    overwrite: Overwrite = False,
) -> None:
    """Write a page with the trend of every series, its jumps and their causes."""
    from traceq.history.series import series_in

    refuse_to_lose(file, [db], overwrite=overwrite)
    page = renderer("page.views:history_page")(series_in(db, name=series), db.name)
    write_file(file, page)
    output.write(f"{file}\n")


def compare(
    run: Annotated[
        Path, paths_argument("A new run, which is not added to the history.", "RUN")
    ],
    *,
    db: Db = DEFAULT,
    commit: Commit = "",
    series: SeriesName = "",
    on: On = None,
    step_ms: StepMs = None,
    form: Annotated[Format, format_option(Format)] = Format.text,
    file: OutputFile = None,
    overwrite: Overwrite = False,
    config: ConfigFile = None,
    own: Own = None,
    steps_by: StepsBy = None,
    root: Root = None,
    no_cache: NoCache = False,
) -> None:
    """Show what a new run changes against the last ten runs of its series.

    In CI, where the history has the runs of the main branch, --format markdown is the
    comment on a pull request.
    """
    from traceq.api.history import DigestOptions, digests_of
    from traceq.history.series import compare_new

    refuse_to_lose(file, [db, run], overwrite=overwrite)
    options = _options(config, own, steps_by, root, step_ms=step_ms, cache=not no_cache)
    render = renderer(f"history.{form.value}:compare")
    wide = {"width": None if file else output.width()} if form is Format.text else {}
    entries = digests_of(run, options, DigestOptions(commit, series, on))
    if len(entries) != 1:
        msg = f"{run} has {len(entries)} runs in it: give one"
        raise UsageError(msg)
    ((key, digest),) = entries
    deliver(render(compare_new(db, key, digest), **wide), file)


def bisect(
    good: Annotated[str, typer.Argument(help="A commit that is good.", metavar="GOOD")],
    bad: Annotated[str, typer.Argument(help="A later one that is bad.", metavar="BAD")],
    *,
    db: Db = DEFAULT,
    series: SeriesName = "",
    number: Annotated[
        NumberName | None,
        typer.Option(
            "--number",
            help="What is bad: step, memory, gpu-busy, idle, reserved, syncs or"
            " kernels; by default what differs most.",
            metavar="NUMBER",
        ),
    ] = None,
    form: Annotated[BisectFormat, format_option(BisectFormat)] = BisectFormat.text,
    root: Root = None,
) -> None:
    """Show which commit to measure next between a good and a bad one."""
    from traceq.api.history import bisection

    name: Name | None = (
        None if number is None else "gpu busy" if number == "gpu-busy" else number
    )
    result = bisection(db, good, bad, series=series, number=name, root=root)
    deliver(renderer(f"history.{form.value}:bisect")(result), None)


def _options(
    config: Path | None,
    own: list[str] | None,
    steps_by: str | None,
    root: Path | None,
    *,
    step_ms: float | None,
    cache: bool,
) -> LintOptions:
    from traceq.api import settings

    wanted = settings.configuration(config)
    load = settings.load_options(wanted, own=own, steps_by=steps_by, cache=cache)
    return settings.LintOptions(
        config=wanted, load=load, root=root, step_ns=settings.nanoseconds(step_ms)
    )


COMMANDS = {
    "add": add,
    "show": show,
    "explain": explain,
    "report": report,
    "compare": compare,
    "bisect": bisect,
}
