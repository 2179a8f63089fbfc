"""`traceq collect`: run a program and record a few of its steps."""

from __future__ import annotations

import runpy
from typing import Any

import typer
from typer.core import TyperCommand

from traceq._folders import bundled


class Untouched(TyperCommand):
    """Leaves the words of its command line alone, `--` and `--help` included."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Keep the words for the one parser there is: that of collect/."""
        ctx.args = list(args)
        return []


def command(context: typer.Context) -> None:
    """Run a PyTorch program as it is and record a few of its steps."""
    # collect/ stands alone, so that it can be copied: it is run, not imported.
    main = runpy.run_path(str(bundled("collect")), run_name="collect")["main"]
    raise typer.Exit(main(context.args, "traceq collect"))
