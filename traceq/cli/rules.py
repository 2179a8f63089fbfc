"""`traceq rules` and `traceq rule`: what is looked for, and a page on each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.cli import output
from traceq.cli.options import Packs, configuration
from traceq.errors import UsageError
from traceq.files import write_folder
from traceq.lint.pack import load_rules
from traceq.lint.scaffold import file_of, new_rule
from traceq.lint.select import find_rule
from traceq.report import rule_pages

if TYPE_CHECKING:
    from traceq.lint.pack import Rules


def list_command(
    *,
    packs: Packs = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table of the README.")
    ] = False,
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
    rules = _rules(packs)
    if new:
        _write_new(new, code.upper(), folder, rules)
        return
    output.write(rule_pages.table(rules) if markdown else rule_pages.listing(rules))


def page_command(
    rule: Annotated[str, typer.Argument(help="Code or name of a rule.")],
    *,
    packs: Packs = None,
) -> None:
    """Print a rule's page: what it finds, why that is bad, how to fix it."""
    output.write(rule_pages.page(find_rule(_rules(packs), rule)))


def _write_new(name: str, code: str, folder: Path, rules: Rules) -> None:
    if code in rules:
        msg = f"{code} is {rules[code].name()}: give the new rule another --code"
        raise UsageError(msg)
    path = folder / file_of(name)
    text = new_rule(name, code)
    if path.exists():
        msg = f"{path} exists: give the rule another name"
        raise UsageError(msg)
    write_folder(folder, {path.name: text.encode()})
    output.write(f"{path}\nNext: traceq test {folder}\n")


def _rules(packs: list[Path] | None) -> Rules:
    return load_rules((*configuration(None).packs, *(packs or ())))
