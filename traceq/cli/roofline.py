"""`traceq roofline`: how far each op is from what the GPU can do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceq.analysis.replay.bound import bound_of
from traceq.analysis.replay.recoverable import by_op
from traceq.analysis.time.roofline import roofline
from traceq.cli.options import (
    FORMAT,
    NoCache,
    OutputFile,
    Overwrite,
    Own,
    StepMs,
    TableFormat,
    paths_argument,
)
from traceq.cli.writing import deliver_table, refuse_to_lose
from traceq.errors import InputError, UsageError
from traceq.opening.recordings import load_shown, traces
from traceq.opening.settings import nanoseconds, use_own
from traceq.report import roofline as report


def command(  # noqa: PLR0913 - one parameter an option
    path: Annotated[Path, paths_argument("A trace or a run folder.")],
    *,
    top: Annotated[
        int, typer.Option(help="How many ops to show.", min=1, metavar="N")
    ] = 20,
    form: Annotated[TableFormat, FORMAT] = TableFormat.text,
    file: OutputFile = None,
    overwrite: Overwrite = False,
    step_ms: StepMs = None,
    own: Own = None,
    no_cache: NoCache = False,
) -> None:
    """Show how far each op is from what the GPU can do, and what that costs a step.

    Operations and bytes come from shapes, dtypes and strides; the peaks are the
    vendor's, without sparsity.
    """
    refuse_to_lose(file, [path], overwrite=overwrite)
    use_own(own)
    given, unread = traces([path], cache=not no_cache)
    if unread or len(given) != 1:
        msg = f"{path} has {len(given)} traces: give one of them"
        raise UsageError(msg)
    trace = load_shown(given[0], cache=not no_cache)
    step_ns = nanoseconds(step_ms) or trace.step_ns
    if not trace.facts.gpu or not trace.facts.shapes:
        lacks = "shapes: record with record_shapes=True"
        msg = f"{path} has no {lacks if trace.facts.gpu else 'GPU work'}"
        raise InputError(msg)
    found = roofline(trace)
    shown = report.Shown(
        str(given[0]),
        found,
        by_op(trace, found, step_ns),
        bound_of(trace, step_ns).step_ns,
        top,
    )
    deliver_table(report, shown, form, file)
