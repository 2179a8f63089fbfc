"""`traceq check`: fixtures, and what is found in them, are as expected."""

from __future__ import annotations

import os
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from traceq.check.check import Result, check, check_against
from traceq.check.fixture import find_fixtures
from traceq.cli import output
from traceq.cli.lint import Packs  # noqa: TC001 - typer reads it
from traceq.cli.recordings import NoCache, load_recording
from traceq.errors import UsageError
from traceq.lint.config import find_config, read_config
from traceq.lint.pack import load_rules
from traceq.report.check import json as check_json
from traceq.report.check import markdown as check_markdown
from traceq.report.check import text as check_text

_NOT_AS_EXPECTED = 1
_FIXTURES = Path("fixtures")


class Format(str, Enum):
    """How to write the differences."""

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
            "--update", help="Write what is found as what is expected from now on."
        ),
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            help="Hold this new run or trace to the one fixture given.", metavar="RUN"
        ),
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", help="How to write the differences.")
    ] = Format.text,
    packs: Packs = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Configuration instead of the nearest traceq.toml.", metavar="FILE"
        ),
    ] = None,
    no_cache: NoCache = False,
) -> None:
    """Lint the fixtures and compare: findings with findings.json, numbers with budgets.

    Exits 0 if all is as expected, 1 if not, 2 if traceq could not work.
    """
    if update and os.environ.get("CI"):
        msg = (
            "--update is refused where CI is set: what is expected is for people to"
            " change and to read"
        )
        raise UsageError(msg)
    if update and against:
        msg = "--update takes what is found in the fixture itself: leave out --against"
        raise UsageError(msg)
    wanted = read_config(config) if config else find_config(Path.cwd())
    rules = load_rules((*wanted.packs, *(packs or ())))
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
    output.write(_rendered(results, form))
    if any(result.fails for result in results):
        sys.exit(_NOT_AS_EXPECTED)


def _rendered(results: list[Result], form: Format) -> str:
    if form is Format.json:
        return check_json.render(results)
    if form is Format.markdown:
        return check_markdown.render(results)
    return check_text.render(results, width=output.width(), color=output.color())
