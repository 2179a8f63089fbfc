"""`traceq collect`: run a program and record a few of its steps."""

from __future__ import annotations

import sys

import click

from traceq.cli.commands import Command
from traceq.common.locations import bundled


class Untouched(Command):
    """Passes its command line on unparsed, including `--` and `--help`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Leave the parsing to collect/, which has its own parser."""
        ctx.args = list(args)
        return []


def command() -> None:
    """Run an unmodified PyTorch program and record a few of its steps."""
    import runpy

    # collect/ works without traceq, so that it can be copied: it is run, not imported.
    main = runpy.run_path(str(bundled("collect")), run_name="collect")["main"]
    sys.exit(main(click.get_current_context().args, "traceq collect"))


command.parser = Untouched  # type: ignore[attr-defined]  # the class of the command
