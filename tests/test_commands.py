"""Commands are listed without importing them, and imported when they are called."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Annotated, Optional

import click
import pytest

from traceq.cli.commands import COMMANDS, imported
from traceq.cli.parameters import Option, parameters_of


@pytest.mark.parametrize("name", COMMANDS)
def test_what_help_lists_of_a_command_is_the_first_sentence_of_its_own_help(
    name: str,
) -> None:
    command = imported(name)
    first = inspect.cleandoc(command.help or "").partition("\n\n")[0]
    assert first.replace("\n", " ") == COMMANDS[name].help


def test_an_option_may_be_declared_as_python_310_reads_it() -> None:
    def command(*, name: str | None = None) -> None:
        del name

    # What typing.get_type_hints makes there of Annotated[str | None, …] = None.
    read = Optional[Annotated[str | None, Option(help="A name.")]]  # noqa: UP045
    command.__annotations__["name"] = read

    ((parameter,), _) = parameters_of(command)

    assert parameter.opts == ["--name"]


# What each needs and does not: nobody waits for it.
SLOW = {
    "--version": {"click", "polars", "rich", "json", "dataclasses", "subprocess"},
    "--help": {"polars", "rich", "pydantic", "jinja2", "networkx", "dataclasses"},
    "rules": {"polars", "rich", "jinja2", "networkx"},
    **{
        f"{name} --help": {"polars", "rich", "jinja2", "networkx"}
        for name in COMMANDS
        if name != "collect"
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("call", SLOW)
def test_nobody_waits_for_what_a_command_does_not_need(call: str) -> None:
    asked = [sys.executable, "-X", "importtime", "-m", "traceq", *call.split()]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    modules = {
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert done.stdout
    assert "traceq.cli" in modules
    assert not modules & SLOW[call]


def test_an_example_stands_below_the_help_of_every_command() -> None:
    for name, entry in COMMANDS.items():
        command = imported(name)
        shown = command.get_help(click.Context(command, info_name=name))
        assert f"Example:\n  {entry.example}" in shown
