"""`traceq collect`: run a program and record a few of its steps."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand

from traceq.common.locations import bundled


class Completion(NamedTuple):
    """A completed word, as the completion classes of Typer read it."""

    value: str
    help: str
    type: str = "plain"


class UnparsedCommand(TyperCommand):
    """Command that passes its words on unparsed, including `--` and `--help`."""

    # Typer's contexts and completions are of private types.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Leave the words to the parser of collect/."""
        ctx.args = list(args)
        return []

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:  # noqa: ANN401
        """Return the options and choices of collect/ that begin like this."""
        completion = COMPLETIONS[ctx.command.name]
        completions = collect_function(completion)(ctx.args, incomplete)
        return [Completion(word, text) for word, text in completions]


COMMAND_CLASS = UnparsedCommand
COMPLETIONS = {
    "collect": "completions",
    "try": "trial_completions",
    "sweep": "sweep_completions",
}
"""Functions of collect/ that complete the words of a command."""


def command(context: typer.Context) -> None:
    """Run an unmodified PyTorch program and record a few of its steps."""
    sys.exit(collect_function("main")(context.args, "traceq collect"))


def collect_function(function: str) -> Any:  # noqa: ANN401 - of a module that is run
    """Return a function of collect/: it is run, not imported, to work if copied."""
    import runpy

    return runpy.run_path(str(bundled("collect")), run_name="collect")[function]
