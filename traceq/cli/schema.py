"""`traceq schema`: the columns of the tables."""

from __future__ import annotations

from typing import Annotated

import typer

from traceq.cli import output
from traceq.cli.deliver import deliver, refuse_to_lose
from traceq.cli.options import OutputFile, Overwrite
from traceq.errors import UsageError


def command(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tables to describe; all if none is given.", metavar="TABLE"
        ),
    ] = None,
    *,
    file: OutputFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Describe the columns of each table: type, unit and meaning."""
    from traceq.model.schema import ANALYSES, TABLES
    from traceq.report import query as frames

    refuse_to_lose(file, [], overwrite=overwrite)
    names = (*TABLES, *ANALYSES, "facts")
    for name in tables or []:
        if name not in names:
            msg = f"there is no table {name!r}; there are " + ", ".join(names)
            raise UsageError(msg)
    text = frames.render_schema(
        tuple(tables or ()),
        width=output.width() if file is None else None,
        color=output.color() and file is None,
    )
    deliver(text, file)
