"""Implementation of `traceq annotate` and `traceq open`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from traceq.annotate import messages
from traceq.annotate.job import job_window, write_job
from traceq.annotate.splice import Output
from traceq.annotate.trace import is_packed, write_annotated
from traceq.api.settings import configuration, nanoseconds, use_own
from traceq.cli import output
from traceq.common.atomic_files import written_whole
from traceq.common.progress import reading, tell
from traceq.errors import UsageError
from traceq.inputs.discovery import one_program
from traceq.inputs.load_recording import load_program
from traceq.inputs.load_trace import load
from traceq.inputs.options import own_code, steps_source
from traceq.linter.engine import lint
from traceq.linter.pack import load_rules
from traceq.ranks.findings import lint_job
from traceq.ranks.load_job import analysed, ranks_in

if TYPE_CHECKING:
    from traceq.linter.config import Config
    from traceq.model.trace import Trace


def annotated_job(
    paths: list[Path], file: Path, config: Config, steps: str | None, *, cache: bool
) -> str:
    """Write all ranks of a job, and return what there is to say."""
    ranks = ranks_in(paths, cache=cache)
    analysis = analysed(paths, cache=cache)
    name = str(paths[0])
    outcome = lint_job(name, analysis, load_rules(config.packs), config).outcomes[0]
    job = analysis.job
    for sentence in job.said:
        output.say(sentence)

    def loaded(row: int) -> Trace | None:
        known = job.digests[row].rank
        tell("writing", row, job.ranks.height, f"rank {known['rank']}")
        for path, rank in ranks:
            if str(path) == known["path"] and rank in {None, known["rank"]}:
                return load(
                    path,
                    rank=rank,
                    own=own_code(),
                    steps_by=steps_source(),
                    cache=cache,
                )
        return None

    with written_whole(file) as stream:
        to = Output(stream, packed=is_packed(file))
        window = job_window(job, steps) if steps else None
        written = write_job(analysis, outcome, loaded, to, window=window)
        to.finish()
        return messages.of_job(written, outcome, file, stream.tell())


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
    return messages.sentences(written, outcome, file)
