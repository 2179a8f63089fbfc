"""Commands are listed without importing them, and imported when they are called."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import typer

from traceq.cli.commands import COMMANDS, imported


@pytest.mark.parametrize("name", COMMANDS)
def test_what_help_lists_of_a_command_is_the_first_sentence_of_its_own_help(
    name: str,
) -> None:
    command = imported(name)
    first = inspect.cleandoc(command.help).partition("\n\n")[0]
    assert first.replace("\n", " ") == COMMANDS[name].help


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["rule", "--nothing"]])
def test_a_newcomer_does_not_wait_for_polars_before_he_works(words: list[str]) -> None:
    asked = [sys.executable, "-X", "importtime", "-m", "traceq", *words]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    modules = {
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert "typer" in modules
    assert ("polars" in modules) == (words[0] == "rule")


def test_an_example_stands_below_the_help_of_every_command() -> None:
    for name, entry in COMMANDS.items():
        command = imported(name)
        assert isinstance(command, (typer.core.TyperCommand, typer.core.TyperGroup))
        assert entry.example in str(command.epilog)
