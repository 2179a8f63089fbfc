"""`traceq query`: SQL over the tables of a trace."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import polars as pl
import typer

from traceq.cli import output
from traceq.cli.loading import NoCache, load_shown
from traceq.errors import UsageError
from traceq.model.schema import TABLES
from traceq.report import frames


class Format(str, Enum):
    """How to write the result of a query."""

    table = "table"
    csv = "csv"
    json = "json"


def command(
    path: Annotated[Path, typer.Argument(help="A trace.", metavar="TRACE")],
    sql: Annotated[str, typer.Argument(help="The query.", metavar="SQL")],
    *,
    form: Annotated[
        Format, typer.Option("--format", help="How to write the result.")
    ] = Format.table,
    no_cache: NoCache = False,
) -> None:
    """Ask the tables of a trace in SQL; `traceq schema` says what is in them."""
    trace = load_shown(path, cache=not no_cache)
    tables = trace.frames_by_name()
    try:
        with pl.SQLContext(tables, eager=True) as context:
            found = context.execute(sql)
    except (pl.exceptions.PolarsError, pl.exceptions.SQLSyntaxError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        msg = f"the query cannot be run: {reason} (tables: {', '.join(TABLES)})"
        raise UsageError(msg) from None
    if not found.width:
        msg = "the query asks for nothing: begin it with SELECT"
        raise UsageError(msg)
    if form is Format.csv:
        output.write(frames.render_csv(found))
    elif form is Format.json:
        output.write(frames.render_json(found))
    else:
        # A pipe wants whole values; a terminal wants lines that fit.
        width, color = output.width(), output.color()
        output.write(frames.render_table(found, width=width, color=color))
