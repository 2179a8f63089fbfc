"""`traceq regions`: cost of a program's regions and modules, and their differences."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from traceq.cli.deliver import deliver_table, refuse_to_lose
from traceq.cli.options import (
    NoCache,
    OutputFile,
    Overwrite,
    Own,
    RankNumber,
    StepMs,
    StepsBy,
    TableFormat,
    format_option,
    paths_argument,
)


class By(str, Enum):
    """Kinds of regions."""

    region = "region"
    module = "module"


def command(
    paths: Annotated[
        list[Path],
        paths_argument("Traces or run folders; of two, each region is compared."),
    ],
    *,
    by: Annotated[
        By, typer.Option(help="Regions of record_function, or calls of modules.")
    ] = By.region,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            help="Compare two regions: by name, or by path where a name is not enough.",
            metavar="A B",
        ),
    ] = None,
    instances: Annotated[
        bool,
        typer.Option("--instances", help="A row for each layer, not for each kind."),
    ] = False,
    top: Annotated[
        int, typer.Option(help="How many rows to show.", min=1, metavar="N")
    ] = 30,
    step_ms: StepMs = None,
    form: Annotated[TableFormat, format_option(TableFormat)] = TableFormat.text,
    file: OutputFile = None,
    overwrite: Overwrite = False,
    own: Own = None,
    steps_by: StepsBy = None,
    rank: RankNumber = None,
    no_cache: NoCache = False,
) -> None:
    """Show what each region or module costs: host, GPU, its backward, idle time.

    A region is what the program names by record_function; the backward counts with the
    forward that it belongs to. Two traces, or two regions, are compared.
    """
    from traceq.api.regions import regions
    from traceq.report import regions as report

    refuse_to_lose(file, paths, overwrite=overwrite)
    result = regions(
        paths,
        by=by.value,
        compare=compare,
        instances=instances,
        top=top,
        step_ms=step_ms,
        own=own,
        steps_by=steps_by,
        rank=rank,
        cache=not no_cache,
    )
    deliver_table(report, result.shown, form, file)
