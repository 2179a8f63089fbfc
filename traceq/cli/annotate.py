"""`traceq annotate`: the trace with its findings as tracks, for Perfetto."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from traceq.annotate import words
from traceq.annotate.one import write_annotated
from traceq.cli import output
from traceq.cli.options import (
    Captures,
    ConfigFile,
    Kernels,
    Log,
    NoCache,
    Overwrite,
    Own,
    StepMs,
    StepsBy,
    paths_argument,
)
from traceq.cli.writing import refuse_to_lose
from traceq.errors import UsageError
from traceq.given import one_program
from traceq.linter.engine import lint
from traceq.linter.pack import load_rules
from traceq.opening.recordings import load_program
from traceq.opening.settings import (
    configuration,
    nanoseconds,
    use_captures,
    use_kernels,
    use_own,
)
from traceq.watching import reading, tell


def command(  # noqa: PLR0913 - one parameter an option
    path: Annotated[
        Path, paths_argument("A trace, or a folder, archive or run folder with one.")
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
    no_cache: NoCache = False,
) -> None:
    """Write the trace with its findings as tracks, to open in Perfetto.

    A process called traceq has a track for each rule, with slices on the kernels, the
    idle gaps and the host time that a finding is about. The trace's own events stay
    as they are.
    """
    refuse_to_lose(file, [path], overwrite=overwrite)
    use_captures(captures)
    use_kernels(kernels)
    text = annotated(
        path,
        file,
        steps=steps,
        log=log,
        step_ms=step_ms,
        config=config,
        own=own,
        steps_by=steps_by,
        cache=not no_cache,
    )
    output.write(text + words.how_to_look(file))


def annotated(  # noqa: PLR0913 - what a command was given
    path: Path,
    file: Path,
    *,
    steps: str | None = None,
    log: Path | None = None,
    step_ms: float | None = None,
    config: Path | None = None,
    own: list[str] | None = None,
    steps_by: str | None = None,
    cache: bool,
) -> str:
    """Write the trace of a path with its findings, and return what there is to say."""
    wanted = configuration(config)
    use_own(own, wanted, steps_by)
    with reading(path.name) as progress:
        program = one_program(path, cache=cache, progress=progress)
    recording = load_program(program, log=log, cache=cache)
    recording = replace(recording, step_ns=nanoseconds(step_ms) or recording.step_ns)
    outcome = lint([recording], load_rules(wanted.packs), wanted).outcomes[0]
    trace = recording.trace
    source = trace.rank.trace if trace and trace.rank else program.trace
    if trace is None or source is None:
        msg = f"{recording.name} has no trace: give the one that the profiler wrote"
        raise UsageError(msg)
    tell("writing")
    with reading(file.name) as progress:
        written = write_annotated(
            trace,
            outcome,
            recording.step_ns,
            source,
            file,
            steps=steps,
            progress=progress,
        )
    return words.sentences(written, outcome, file)
