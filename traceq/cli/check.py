"""`traceq check`: comparison of fixtures with their expected findings."""

from __future__ import annotations

import os
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.cli import output
from traceq.cli.deliver import deliver, refuse_to_lose, renderer
from traceq.cli.options import (
    ConfigFile,
    FailOn,
    NoCache,
    NoPacks,
    OutputFile,
    Overwrite,
    Packs,
    RankNumber,
    StepMs,
    format_option,
)
from traceq.errors import UsageError
from traceq.inputs.display_path import parse_path

if TYPE_CHECKING:
    from traceq.check.check import FixtureResult

_NOT_AS_EXPECTED = 1
_FIXTURES = Path("fixtures")


class Format(str, Enum):
    """Formats of the differences."""

    text = "text"
    json = "json"
    markdown = "markdown"
    junit = "junit"
    gitlab = "gitlab"


def command(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            help=(
                "Fixtures, or folders of them; ./fixtures if none is given. With"
                " --against also the ranks of a job."
            ),
            metavar="FOLDER",
        ),
    ] = None,
    *,
    update: Annotated[
        bool,
        typer.Option(
            "--update", help="Write current findings and numbers as the expectation."
        ),
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            help="Compare this new run, trace or job with the fixture.",
            metavar="RUN",
            parser=parse_path,
        ),
    ] = None,
    step_ms: StepMs = None,
    fail_on: FailOn = None,
    run: Annotated[
        bool | None,
        typer.Option(
            "--run/--no-run",
            help=(
                "Run the program that origin.toml names, and compare the run; without"
                " either, only programs of the repository around here, if torch is"
                " installed."
            ),
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            help="Run only programs whose origin.toml is the same in this commit.",
            metavar="COMMIT",
        ),
    ] = None,
    cpu: Annotated[
        bool,
        typer.Option("--cpu", help="Let the program see no GPU."),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(help="Stop a program after this long.", metavar="S", min=1),
    ] = 600,
    runs: Annotated[
        Path | None,
        typer.Option(help="Keep what was recorded, here.", metavar="FOLDER"),
    ] = None,
    form: Annotated[Format, format_option(Format)] = Format.text,
    file: OutputFile = None,
    overwrite: Overwrite = False,
    packs: Packs = None,
    no_packs: NoPacks = False,
    config: ConfigFile = None,
    rank: RankNumber = None,
    no_cache: NoCache = False,
) -> None:
    """Lint the fixtures and compare: findings with findings.json, numbers with budgets.

    A committed trace does not change when the program does, so the program is run, too,
    on any machine with torch: by itself if git has the fixture in the repository around
    here, and not for a fork's change in CI; --run runs any, --no-run none. Exits 0 if
    all is as expected, 1 if not, 2 if traceq could not do its work or had nothing to
    compare.
    """
    if update and os.environ.get("CI"):
        msg = (
            "--update is refused where CI is set: people change expectations, and read"
            " them"
        )
        raise UsageError(msg)
    _refuse_mixed(update=update, against=against, run=bool(run), step_ms=step_ms)
    refuse_to_lose(file, [against] if against else [], overwrite=overwrite)
    from traceq.api import settings
    from traceq.cli._check import Checking, Running, compared
    from traceq.linter.pack import load_rules
    from traceq.linter.trust import named

    wanted = settings.overridden(
        settings.configuration(config, packs=not no_packs),
        fail_on=fail_on,
        rules=packs,
    )
    load = settings.load_options(wanted, rank=rank, cache=not no_cache)
    step_ns = settings.nanoseconds(step_ms)
    # An update and --against are of traces that there are, unless --run asks for one.
    by_itself = run is None and not update and not against
    running = None
    if run or by_itself:
        running = Running(runs, cpu, timeout, by_itself=by_itself, base=base or "")
    how = Checking(
        rules=load_rules(wanted.packs),
        lint=settings.LintOptions(config=wanted, load=load, step_ns=step_ns),
        against=against,
        running=running,
        update=update,
    )
    results = compared(folders or [_FIXTURES], how)
    first = named(wanted.packs) if form is Format.text else ""
    deliver(first + _rendered(results, form, to_file=file is not None), file)
    _exit(results, run=bool(run))


def _refuse_mixed(
    *, update: bool, against: Path | None, run: bool, step_ms: float | None
) -> None:
    if update and against:
        msg = "--update writes what is found in the fixture itself: leave out --against"
        raise UsageError(msg)
    if run and against:
        msg = "--run makes the run to compare with: leave out --against"
        raise UsageError(msg)
    if step_ms and not against:
        msg = "--step-ms is of the trace after --against; a fixture's is in origin.toml"
        raise UsageError(msg)


def _exit(results: list[FixtureResult], *, run: bool) -> None:
    if any(result.unable for result in results):
        msg = "not all fixtures could be compared: the report says why"
        raise UsageError(msg)
    if not any(result.compared for result in results):
        msg = "nothing was compared: the report says why"
        raise UsageError(msg)
    if run and not any(result.ran_on for result in results):
        msg = "no program was run, which --run asks for: the report says why"
        raise UsageError(msg)
    if any(result.fails for result in results):
        sys.exit(_NOT_AS_EXPECTED)


def _rendered(results: list[FixtureResult], form: Format, *, to_file: bool) -> str:
    render = renderer(f"check.{form.value}:render")
    if form is not Format.text:
        return render(results)
    width = None if to_file else output.width()
    return render(results, width=width, color=not to_file and output.color())
