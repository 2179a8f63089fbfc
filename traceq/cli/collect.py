"""`traceq collect`: run a program and record a few of its steps."""

from __future__ import annotations

import runpy
from typing import Any

import typer
from typer.core import TyperCommand

from traceq._folders import bundled


class Untouched(TyperCommand):
    """Passes its command line on unparsed, including `--` and `--help`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Leave the parsing to collect/, which has its own parser."""
        ctx.args = list(args)
        return []


def command(context: typer.Context) -> None:
    """Run an unmodified PyTorch program and record a few of its steps."""
    # collect/ works without traceq, so that it can be copied: it is run, not imported.
    main = runpy.run_path(str(bundled("collect")), run_name="collect")["main"]
    raise typer.Exit(main(context.args, "traceq collect"))


command.parser = Untouched  # type: ignore[attr-defined]  # the class of the command
