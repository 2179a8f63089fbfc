"""`traceq regions`: what the regions and modules of a program cost, and differ in."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.analysis.time.regions import BY_MODULE, REGION, calls_named, regions
from traceq.cli.options import (
    FORMAT,
    NoCache,
    OutputFile,
    Overwrite,
    TableFormat,
    paths_argument,
)
from traceq.cli.writing import deliver_table, refuse_to_lose
from traceq.errors import InputError, UsageError
from traceq.opening.recordings import load_shown, traces
from traceq.report import regions as report

if TYPE_CHECKING:
    from traceq.analysis.time.regions import Regions

_TWO = 2


class By(str, Enum):
    """What a region is."""

    region = REGION
    module = BY_MODULE


def command(  # noqa: PLR0913 - one parameter an option
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
    form: Annotated[TableFormat, FORMAT] = TableFormat.text,
    file: OutputFile = None,
    overwrite: Overwrite = False,
    no_cache: NoCache = False,
) -> None:
    """Show what each region or module costs: host, GPU, its backward, idle time.

    A region is what the program names by record_function; the backward counts with the
    forward that it belongs to. Two traces, or two regions, are compared.
    """
    refuse_to_lose(file, paths, overwrite=overwrite)
    given, unread = traces(paths, cache=not no_cache)
    if unread:
        msg = f"{unread} of {len(paths)} files could not be read"
        raise UsageError(msg)
    found = [_regions(path, by, cache=not no_cache) for path in given]
    shown = report.Shown(
        paths=tuple(map(str, given)),
        found=tuple(found),
        by=by.value,
        instances=instances or by is By.region,
        compared=tuple(_compared(found, compare)),
        top=top,
    )
    deliver_table(report, shown, form, file)


def _regions(path: Path, by: By, *, cache: bool) -> Regions:
    found = regions(load_shown(path, cache=cache), by.value)
    if not found.calls.height:
        why = (
            "it names no region: put torch.profiler.record_function around parts of"
            " the program, or ask for --by module"
            if by is By.region
            else "it has no modules: record with stacks, as traceq collect does"
        )
        msg = f"{path} has nothing to show: {why}"
        raise InputError(msg)
    return found


def _compared(
    found: list[Regions], names: tuple[str, str] | None
) -> list[report.Compared]:
    if names is None:
        both = report.compared_names(found) if len(found) == _TWO else []
        return [_pair(found, (name, name)) for name in both]
    return [_pair(found if len(found) == _TWO else [found[0]] * 2, names)]


def _pair(found: list[Regions], names: tuple[str, str]) -> report.Compared:
    first, second = (
        calls_named(one, name) for one, name in zip(found, names, strict=True)
    )
    for name, calls in ((names[0], first), (names[1], second)):
        if not calls.height:
            msg = f"there is no region {name}: traceq regions lists what there is"
            raise UsageError(msg)
    return report.Compared(names, (found[0], found[1]), (first, second))
