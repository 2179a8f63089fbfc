"""`traceq roofline`: distance of each op from the GPU's peaks."""

from __future__ import annotations

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


def command(
    path: Annotated[Path, paths_argument("A trace or a run folder.")],
    *,
    top: Annotated[
        int, typer.Option(help="How many ops to show.", min=1, metavar="N")
    ] = 20,
    form: Annotated[TableFormat, format_option(TableFormat)] = TableFormat.text,
    file: OutputFile = None,
    overwrite: Overwrite = False,
    step_ms: StepMs = None,
    own: Own = None,
    steps_by: StepsBy = None,
    rank: RankNumber = None,
    no_cache: NoCache = False,
) -> None:
    """Show how far each op is from what the GPU can do, and what that costs a step.

    Operations and bytes come from shapes, dtypes and strides; the peaks are the
    vendor's, without sparsity.
    """
    from traceq.api.roofline import roofline
    from traceq.report import roofline as report

    refuse_to_lose(file, [path], overwrite=overwrite)
    result = roofline(
        path,
        top=top,
        step_ms=step_ms,
        own=own,
        steps_by=steps_by,
        rank=rank,
        cache=not no_cache,
    )
    deliver_table(report, result.shown, form, file)
