"""`traceq rules` and `traceq rule`: what is looked for, and a page on each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.cli import output
from traceq.lint.config import find_config
from traceq.lint.pack import load_rules
from traceq.lint.select import find_rule
from traceq.report import rule_pages

if TYPE_CHECKING:
    from traceq.lint.pack import Rules

Packs = Annotated[
    list[Path] | None,
    typer.Option("--rules", help="A folder of rules of your own.", metavar="FOLDER"),
]


def list_command(
    *,
    packs: Packs = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Write the table of the README.")
    ] = False,
) -> None:
    """List the rules: code, name, and what each one finds."""
    rules = _rules(packs)
    output.write(rule_pages.table(rules) if markdown else rule_pages.listing(rules))


def page_command(
    rule: Annotated[str, typer.Argument(help="Code or name of a rule.")],
    *,
    packs: Packs = None,
) -> None:
    """Print a rule's page: what it finds, why that is bad, how to fix it."""
    output.write(rule_pages.page(find_rule(_rules(packs), rule)))


def _rules(packs: list[Path] | None) -> Rules:
    return load_rules((*find_config(Path.cwd()).packs, *(packs or ())))
