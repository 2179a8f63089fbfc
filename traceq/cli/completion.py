"""Completion of rule codes in the shell, without importing what takes a second.

The shell asks at every key; the codes are read from the sources of the rules.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Annotated

import typer

from traceq._folders import bundled

_ASKED = "_TRACEQ_COMPLETE"
# What shells put the words of a command line into: bash and fish, zsh, PowerShell.
_WORDS = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
_OF_A_RULE = re.compile(
    r"\s*\S+\s+(?:rule\s|lint\s(?:.*\s)?--(?:select|ignore)[\s=]+\S*$)"
)
_RULE = re.compile(
    r'^class (\w+)\(\w+\):(?:(?!^class )[\s\S])*?^    code = "(\w+)"', re.MULTILINE
)
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def codes(incomplete: str) -> Iterator[tuple[str, str]]:
    """Yield the codes of rules that begin like this, with their names.

    The last of several codes, as in ATT001,SYN, is completed, small letters as such.
    """
    before, comma, last = incomplete.rpartition(",")
    for code, name in sorted(_known()):
        if code.startswith(last.upper()):
            written = code.lower() if last.islower() else code
            yield before + comma + written, name


def _known() -> Iterator[tuple[str, str]]:
    for file in bundled("rules").rglob("[!_]*.py"):
        for found in _RULE.finditer(file.read_text(encoding="utf-8")):
            yield found[2], _WORD.sub("-", found[1]).lower()


def complete() -> None:
    """Answer a shell that asks for the code of a rule; it ends the program then."""
    asked = next((os.environ[name] for name in _WORDS if name in os.environ), "")
    if _ASKED in os.environ and _OF_A_RULE.match(asked):
        _app(prog_name="traceq")


_app = typer.Typer(add_completion=True)


@_app.callback()
def _traceq() -> None:
    """Stand for the application."""


@_app.command("rule")
def _rule(
    rule: Annotated[str, typer.Argument(autocompletion=codes)],
) -> None:
    del rule


@_app.command("lint", context_settings={"ignore_unknown_options": True})
def _lint(
    paths: list[str] | None = None,
    select: Annotated[list[str] | None, typer.Option(autocompletion=codes)] = None,
    ignore: Annotated[list[str] | None, typer.Option(autocompletion=codes)] = None,
) -> None:
    del paths, select, ignore
