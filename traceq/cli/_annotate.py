"""Implementation of `traceq annotate` and `traceq open`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from traceq.annotate import messages
from traceq.annotate.job import job_window, write_job
from traceq.annotate.splice import Output
from traceq.annotate.trace import is_packed, write_annotated
from traceq.cli import output
from traceq.common.atomic_files import written_whole
from traceq.common.progress import reading, report_progress
from traceq.errors import UsageError
from traceq.inputs.discovery import single_program
from traceq.inputs.load_recording import load_program
from traceq.inputs.load_trace import load
from traceq.inputs.temporary import chrome_trace
from traceq.linter.engine import lint
from traceq.linter.pack import load_rules
from traceq.linter.view import View
from traceq.ranks.findings import lint_job
from traceq.ranks.load_job import analysed, ranks_in

if TYPE_CHECKING:
    from traceq.api.settings import LintOptions
    from traceq.model.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Annotating:
    """Options of what is read, linted and written."""

    lint: LintOptions
    steps: str | None = None
    """Steps to write, as 2 or 3-5; all if none."""


def annotated_job(paths: list[Path], file: Path, how: Annotating) -> str:
    """Write all ranks of a job, and return what there is to say."""
    config, options, steps = how.lint.config, how.lint.load, how.steps
    ranks = ranks_in(paths, cache=options.use_cache)
    analysis = analysed(paths, options)
    name = str(paths[0])
    outcome = lint_job(name, analysis, load_rules(config.packs), config).outcomes[0]
    job = analysis.job
    for sentence in job.notices:
        output.say(sentence)

    def loaded(row: int) -> Trace | None:
        facts = job.digests[row].rank
        report_progress("writing", row, job.ranks.height, f"rank {facts['rank']}")
        for path, rank in ranks:
            if str(path) == facts["path"] and rank in {None, facts["rank"]}:
                return load(
                    path,
                    rank=rank,
                    own=options.own_code,
                    steps_by=options.steps_by,
                    cache=options.use_cache,
                )
        return None

    with written_whole(file) as stream:
        to = Output(stream, packed=is_packed(file))
        window = job_window(job, steps) if steps else None
        written = write_job(analysis, outcome, loaded, to, window=window)
        to.finish()
        return messages.of_job(written, outcome, file, stream.tell())


def annotated(paths: list[Path], file: Path, how: Annotating) -> str:
    """Write the one trace with its findings, and return what there is to say."""
    (path,) = paths
    options, config = how.lint, how.lint.config
    with reading(path.name) as progress:
        program = single_program(path, cache=options.load.use_cache, progress=progress)
    recording = load_program(program, options.load, log=options.log)
    recording = replace(recording, step_ns=options.step_ns or recording.step_ns)
    outcome = lint([recording], load_rules(config.packs), config).outcomes[0]
    trace = recording.trace
    source = trace.rank.trace if trace and trace.rank else program.trace
    if trace is None or source is None:
        msg = f"{recording.name} has no trace: give the one that the profiler wrote"
        raise UsageError(msg)
    report_progress("writing")
    source = chrome_trace(source, trace)
    view = View(trace, recording.step_ns)
    written = write_annotated(view, outcome, source, file, steps=how.steps)
    return messages.sentences(written, outcome, file)
