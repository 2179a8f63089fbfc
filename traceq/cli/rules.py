"""`traceq rules` and `traceq rule`: the list of rules, and a page on each."""

from __future__ import annotations

import os
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq import __version__
from traceq.cli import output
from traceq.cli.completion import codes
from traceq.cli.deliver import deliver, refuse_to_lose
from traceq.cli.options import OutputFile, Overwrite, Packs, format_option, renamed
from traceq.common.atomic_files import write_files, write_folder
from traceq.common.words import counted
from traceq.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.report.rule_index import Card


class Format(str, Enum):
    """Formats of the list."""

    text = "text"
    markdown = "markdown"


def list_command(
    *,
    packs: Packs = None,
    form: Annotated[Format, format_option(Format)] = Format.text,
    file: OutputFile = None,
    overwrite: Overwrite = False,
    markdown: Annotated[bool, typer.Option("--markdown", hidden=True)] = False,
    trusted: Annotated[
        Path | None,
        typer.Option(
            "--trust",
            help=(
                "Let the rules in this folder run wherever a configuration names it,"
                " until one of its files changes."
            ),
            metavar="FOLDER",
        ),
    ] = None,
    new: Annotated[
        str,
        typer.Option(
            "--new",
            help="Write a rule of this name to start from, as nonzero-in-forward.",
            metavar="NAME",
        ),
    ] = "",
    code: Annotated[
        str, typer.Option("--code", help="Code of the new rule.", metavar="CODE")
    ] = "USR001",
    folder: Annotated[
        Path, typer.Option("--to", help="Folder of the new rule.", metavar="FOLDER")
    ] = Path(),
) -> None:
    """List the rules: code, name, and what each one finds. Or start a new one."""
    from traceq.report import rule_pages
    from traceq.report.rule_index import listed

    if trusted:
        _trust(trusted)
        return
    refuse_to_lose(file, [], overwrite=overwrite)
    if markdown:
        renamed("--markdown", "--format markdown")
        form = Format.markdown
    rules = listed(_packs(packs))
    if new:
        _write_new(new, code.upper(), folder, rules, overwrite=overwrite)
        return
    render = rule_pages.table if form is Format.markdown else rule_pages.listing
    deliver(render(rules), file)


def page_command(
    rule: Annotated[
        str, typer.Argument(help="Code or name of a rule.", autocompletion=codes)
    ],
    *,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print the page as Markdown.")
    ] = False,
    file: OutputFile = None,
    overwrite: Overwrite = False,
    packs: Packs = None,
) -> None:
    """Print a rule's page: what it finds, why that is bad, how to fix it."""
    from traceq.linter.select import find_rule
    from traceq.report import rule_pages
    from traceq.report.rule_index import whole

    refuse_to_lose(file, [], overwrite=overwrite)
    page = find_rule(whole(_packs(packs)), rule).page
    width = output.width() if sys.stdout.isatty() else None
    if width and not raw and file is None:
        page = rule_pages.rendered_page(page, width=width, color=output.color())
    deliver(page, file)


def _trust(folder: Path) -> None:
    from traceq.linter.trust import trust

    files = counted(trust(folder), "file")
    output.write(
        f"{folder} is trusted as it is now, with {files}: its rules run wherever a"
        " configuration names it, until a file in it changes\n"
    )


def _write_new(
    name: str, code: str, folder: Path, rules: Mapping[str, Card], *, overwrite: bool
) -> None:
    from traceq.linter.scaffold import file_of, new_rule

    if code in rules:
        msg = f"{code} is {rules[code].name()}: give the new rule another --code"
        raise UsageError(msg)
    path = folder / file_of(name)
    text = new_rule(name, code, __version__)
    refuse_to_lose(path, [], overwrite=overwrite)
    measured = _with_row(folder, code)
    write_folder(folder, {path.name: text.encode()})
    write_files(measured)
    files = "".join(f"{file}\n" for file in (path, *measured))
    output.write(f"{files}Next: traceq test {folder}\n")


def _with_row(folder: Path, code: str) -> dict[Path, bytes]:
    """Return the measured.toml of the pack with a row of a new rule, if it has one."""
    from traceq.common.locations import MEASURED
    from traceq.linter.scaffold import with_row

    for place in (folder, Path(os.path.normpath(folder / ".."))):
        file = place / MEASURED
        if file.is_file():
            try:
                text = with_row(file.read_text(encoding="utf-8"), code)
            except (OSError, ValueError, UsageError) as error:
                msg = f"{file} cannot be extended: {error}"
                raise UsageError(msg) from None
            return {file: text.encode()}
    return {}


def _packs(folders: list[Path] | None) -> tuple[Path, ...]:
    from traceq.api.settings import configuration

    return (*configuration(None).packs, *(folders or ()))
