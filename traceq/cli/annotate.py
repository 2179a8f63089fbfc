"""`traceq annotate`: the trace with its findings as tracks, for Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceq.cli import output
from traceq.cli.deliver import refuse_to_lose
from traceq.cli.options import (
    Captures,
    ConfigFile,
    Kernels,
    Log,
    NoCache,
    Overwrite,
    Own,
    RankNumber,
    StepMs,
    StepsBy,
    paths_argument,
)


def command(
    paths: Annotated[
        list[Path],
        paths_argument(
            "A trace, or a folder, archive or run folder with one; of a job, the traces"
            " of its ranks or their folder."
        ),
    ],
    *,
    file: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The file to write: compressed if its name ends in .gz.",
            metavar="FILE",
        ),
    ],
    overwrite: Overwrite = False,
    steps: Annotated[
        str | None,
        typer.Option(
            help="Only this many steps, as 2, or only these, as 3-5.", metavar="STEPS"
        ),
    ] = None,
    log: Log = None,
    step_ms: StepMs = None,
    config: ConfigFile = None,
    captures: Captures = None,
    kernels: Kernels = None,
    own: Own = None,
    steps_by: StepsBy = None,
    rank: RankNumber = None,
    no_cache: NoCache = False,
) -> None:
    """Write the trace with its findings as tracks, to open in Perfetto.

    A process called traceq has a track for each rule, with slices on the kernels, the
    idle gaps and the host time that a finding is about. The trace's own events stay
    as they are. Of a job, one file has all ranks on one clock: steps, collectives with
    wait and transfer, kernels, and the findings on the job.
    """
    from traceq.annotate import messages
    from traceq.api import settings
    from traceq.cli._annotate import Annotating, annotated, annotated_job
    from traceq.ranks.load_job import is_job

    refuse_to_lose(file, paths, overwrite=overwrite)
    of_job = len(paths) > 1 or is_job(paths[0])
    wanted = settings.configuration(config)
    load = settings.load_options(
        wanted,
        own=own,
        steps_by=steps_by,
        captures=captures,
        kernels=kernels,
        rank=rank,
        cache=not no_cache,
    )
    step_ns = settings.nanoseconds(step_ms)
    options = settings.LintOptions(config=wanted, load=load, log=log, step_ns=step_ns)
    how = Annotating(lint=options, steps=steps)
    write = annotated_job if of_job else annotated
    output.write(write(paths, file, how) + messages.how_to_look(file))
