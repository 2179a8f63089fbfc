"""Commands are listed without importing them, and imported when they are called."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import pytest
from command import traceq

from traceq.cli.lazy_group import load_command
from traceq.cli.options import Level, StepSource
from traceq.cli.registry import COMMANDS
from traceq.graph.steps import SOURCES
from traceq.model.finding import Severity


@pytest.mark.parametrize("name", COMMANDS)
def test_the_row_of_a_command_is_the_first_sentence_of_its_own_help(name: str) -> None:
    command = load_command(name, None)

    assert command.help.partition("\n\n")[0] == COMMANDS[name].help


@pytest.mark.parametrize("name", COMMANDS)
def test_no_help_has_brackets_that_rich_takes_for_markup(name: str) -> None:
    command = load_command(name, None)
    texts = [command.help, command.epilog, *(param.help for param in command.params)]

    assert not [text for text in texts if text and "[" in text]


def test_the_choices_are_those_of_the_model() -> None:
    assert get_args(Level) == tuple(severity.value for severity in Severity)
    assert get_args(StepSource) == SOURCES


def test_the_commands_are_listed_in_panels() -> None:
    lines = traceq("--help", width=80).lines
    panels = [line for line in lines if line in {"Look:", "Compare:", "Extend:"}]

    assert panels == ["Look:", "Compare:", "Extend:"]
    for name in COMMANDS:
        assert any(line.startswith(f"  {name} ") for line in lines)


# Modules that a call does not need.
SLOW = {
    "--version": {"typer", "polars", "rich", "json", "dataclasses", "subprocess"},
    "--help": {"polars", "rich", "pydantic", "jinja2", "networkx"},
    "rules": {"polars", "rich", "jinja2", "networkx"},
    **{
        f"{name} --help": {"polars", "rich", "pydantic", "jinja2", "networkx"}
        for name in COMMANDS
        if name not in ("collect", "try")
    },
}


@pytest.mark.real
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


@pytest.mark.parametrize(
    "name", [name for name in COMMANDS if name not in ("collect", "try", "sweep")]
)
def test_an_example_stands_below_the_help_of_every_command(name: str) -> None:
    shown = traceq(name, "--help", width=80).out

    assert shown.endswith(f"  Example:\n    {COMMANDS[name].example}\n")
