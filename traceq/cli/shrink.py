"""`traceq shrink`: a trace small enough to commit, with the same findings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceq.cli.options import Log, RankNumber, StepMs, paths_argument
from traceq.inputs.display_path import parse_path


def command(
    path: Annotated[
        Path,
        paths_argument("A trace, a memory snapshot, a run folder or a fixture."),
    ],
    *,
    folder: Annotated[
        Path,
        typer.Option("--output", "-o", help="The fixture's folder.", metavar="FOLDER"),
    ],
    program: Annotated[
        str | None,
        typer.Option(help="What the program is, in a sentence, for origin.toml."),
    ] = None,
    run_by: Annotated[
        str | None,
        typer.Option(
            "--command",
            help="How to run the program, for traceq check --run.",
            metavar="COMMAND",
        ),
    ] = None,
    log: Log = None,
    snapshot: Annotated[
        Path | None,
        typer.Option(
            help="A memory snapshot of the same program.",
            metavar="FILE",
            parser=parse_path,
        ),
    ] = None,
    step_ms: StepMs = None,
    keep_regions: Annotated[
        bool,
        typer.Option("--keep-regions", help="Keep the texts of record_function."),
    ] = False,
    replace_it: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Replace the fixture there; its budgets and expectations stay.",
        ),
    ] = False,
    rank: RankNumber = None,
    max_kb: Annotated[
        int, typer.Option(help="Size limit of the trace, in kB.", min=1)
    ] = 256,
) -> None:
    """Make a small trace of a large one, with the same findings and no private data.

    Keeps whole steps, and of them what the findings need; before anything is written,
    lint finds the same in the result. Leaves out paths, host and user names, texts of
    regions, words of the log that no rule reads, and all that is not known to be
    harmless. Names of code stay: files, functions, modules, operators, kernels. The
    result is a fixture for traceq check.
    """
    from traceq.cli._shrink import Request, make

    request = Request(
        path,
        folder,
        program=program,
        run_by=run_by,
        log=log,
        snapshot=snapshot,
        step_ms=step_ms,
        keep_regions=keep_regions,
        replace_it=replace_it,
        max_kb=max_kb,
        rank=rank,
    )
    make(request)
