"""`traceq try`: switch remedies on and off in a program, and measure them."""

from __future__ import annotations

import sys

import typer

from traceq.cli.collect import UnparsedCommand, collect_function

COMMAND_CLASS = UnparsedCommand
# Without the working directory: a program may have a file there that is named so.
_START = "import sys; sys.path[:1] = []; from traceq.cli import main; main()"


def command(context: typer.Context) -> None:
    """Apply fixes to a program while it runs, measure them, and prove their effect."""
    lint = [sys.executable, "-c", _START, "lint", "--format", "json", "--no-cache"]
    sys.exit(collect_function("trial")(context.args, "traceq try", lint))
