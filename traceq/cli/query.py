"""`traceq query`: SQL over the tables of a trace."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.cli import output
from traceq.cli.deliver import deliver, refuse_to_lose
from traceq.cli.options import (
    NoCache,
    OutputFile,
    Overwrite,
    Own,
    RankNumber,
    format_option,
    paths_argument,
)
from traceq.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

    from traceq.model.trace import Trace

# No two parts begin alike, so that a match takes time in proportion to the query.
_QUESTION = re.compile(
    r"(?:\s|\(|/\*(?:[^*]|\*(?!/))*\*/|--[^\n]*\n)*(?:select|with|show|explain|from)\b",
    re.IGNORECASE,
)
# Looked for in literals, too: what is a literal only the parser knows for sure. Nor
# does it matter what a comment behind the name holds, or where it ends.
_FILE_FUNCTION = re.compile(
    r"\b((?:read|scan)_\w+)[\"`]?\s*(?:\(|/\*|--)", re.IGNORECASE
)


class Format(str, Enum):
    """Formats of the result."""

    table = "table"
    csv = "csv"
    json = "json"


def command(
    path: Annotated[Path, paths_argument("A trace.", "TRACE")],
    sql: Annotated[str, typer.Argument(help="The query.", metavar="SQL")],
    *,
    form: Annotated[Format, format_option(Format)] = Format.table,
    file: OutputFile = None,
    overwrite: Overwrite = False,
    own: Own = None,
    rank: RankNumber = None,
    no_cache: NoCache = False,
) -> None:
    """Query the tables of a trace in SQL; `traceq schema` describes them."""
    import polars as pl

    from traceq.api.settings import load_options
    from traceq.inputs.load_recording import load_trace_with_notices

    refuse_to_lose(file, [path], overwrite=overwrite)
    _refuse_all_but_questions(sql)
    trace = load_trace_with_notices(
        path, load_options(own=own, rank=rank, cache=not no_cache)
    )
    try:
        with pl.SQLContext(_tables(trace), eager=True) as context:
            frame = context.execute(sql)
    except (pl.exceptions.PolarsError, pl.exceptions.SQLSyntaxError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        msg = f"the query cannot be run: {reason}; {_hint(reason)}"
        raise UsageError(msg) from None
    deliver(_rendered(frame, form, to_file=file is not None), file)


def _rendered(frame: pl.DataFrame, form: Format, *, to_file: bool) -> str:
    from traceq.report import query as frames

    if form is Format.csv:
        return frames.render_csv(frame)
    if form is Format.json:
        return frames.render_json(frame)
    # A pipe wants whole values; a terminal wants lines that fit.
    width = None if to_file else output.width()
    return frames.render_table(frame, width=width, color=not to_file and output.color())


def _tables(trace: Trace) -> dict[str, pl.LazyFrame]:
    """Return the tables with plain strings, which LIKE and || need."""
    import polars as pl
    import polars.selectors as cs

    coded = cs.categorical() | cs.enum()
    return {
        name: table.lazy().with_columns(coded.cast(pl.String))
        for name, table in trace.frames_by_name().items()
    }


def _refuse_all_but_questions(sql: str) -> None:
    """Let a query read the trace; it may not create tables or open files."""
    if not _QUESTION.match(sql):
        msg = "the query is not a question: begin it with SELECT or WITH"
        raise UsageError(msg)
    if match := _FILE_FUNCTION.search(sql):
        msg = f"a query reads only the trace: leave out {match[1]}"
        raise UsageError(msg)


def _hint(reason: str) -> str:
    from traceq.model.schema import TABLES

    if reason.startswith("relation"):
        return f"the tables are {', '.join(TABLES)}"
    return "traceq schema describes the tables"
