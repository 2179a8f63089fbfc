"""`traceq check`: lint the fixtures and compare with what is expected."""

from __future__ import annotations

import os
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from traceq.check.check import FixtureResult, check, check_against
from traceq.check.fixture import find_fixtures
from traceq.cli import output
from traceq.cli.options import (
    FORMAT,
    ConfigFile,
    NoCache,
    Packs,
    configuration,
    use_own,
)
from traceq.cli.recordings import load_recording
from traceq.cli.trust import named
from traceq.errors import UsageError
from traceq.lint.pack import load_rules
from traceq.report.check import json as check_json
from traceq.report.check import markdown as check_markdown
from traceq.report.check import text as check_text
from traceq.shown import typed

_NOT_AS_EXPECTED = 1
_FIXTURES = Path("fixtures")


class Format(str, Enum):
    """Formats of the differences."""

    text = "text"
    json = "json"
    markdown = "markdown"


def command(  # noqa: PLR0913 - one parameter an option
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Fixtures, or folders of them; ./fixtures if none is given.",
            metavar="FOLDER",
            show_default=False,
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
            help="Compare this new run or trace with the fixture.",
            metavar="RUN",
            parser=typed,
        ),
    ] = None,
    form: Annotated[Format, FORMAT] = Format.text,
    packs: Packs = None,
    config: ConfigFile = None,
    no_cache: NoCache = False,
) -> None:
    """Lint the fixtures and compare: findings with findings.json, numbers with budgets.

    Exits 0 if all is as expected, 1 if not, 2 if traceq could not do its work.
    """
    if update and os.environ.get("CI"):
        msg = (
            "--update is refused where CI is set: people change expectations, and read"
            " them"
        )
        raise UsageError(msg)
    if update and against:
        msg = "--update writes what is found in the fixture itself: leave out --against"
        raise UsageError(msg)
    wanted = configuration(config)
    use_own(None, wanted)
    loaded = (*wanted.packs, *(packs or ()))
    rules = load_rules(loaded)
    found = find_fixtures(folders or [_FIXTURES])
    cache = not no_cache
    if against:
        if len(found) != 1:
            msg = f"--against takes one fixture, not {len(found)}: name its folder"
            raise UsageError(msg)
        new = load_recording(against, log=None, cache=cache)
        results = [check_against(found[0], new, rules, wanted)]
    else:
        results = [
            check(folder, rules, wanted, update=update, cache=cache) for folder in found
        ]
    first = named(loaded) if form is Format.text else ""
    output.write(first + _rendered(results, form))
    if any(result.fails for result in results):
        sys.exit(_NOT_AS_EXPECTED)


def _rendered(results: list[FixtureResult], form: Format) -> str:
    if form is Format.json:
        return check_json.render(results)
    if form is Format.markdown:
        return check_markdown.render(results)
    return check_text.render(results, width=output.width(), color=output.color())
