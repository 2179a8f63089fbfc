"""Recordings that a user names: traces, snapshots, logs and run folders."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
from msgspec import structs

from traceq.common.progress import notify, reading
from traceq.common.units import time
from traceq.common.words import counted
from traceq.formats.log import has_code
from traceq.formats.nsys.recognition import is_export
from traceq.formats.run import is_run, read_run
from traceq.inputs.discovery import single_program
from traceq.inputs.load_trace import load, runs_compiled, with_kernels
from traceq.inputs.nsys_report import is_report
from traceq.model.owners import NOBODY
from traceq.model.recording import Recording

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.inputs.discovery import Program
    from traceq.inputs.options import LoadOptions
    from traceq.model.run import Rank
    from traceq.model.snapshot import Snapshot
    from traceq.model.trace import Trace


def ranks_of(path: Path) -> list[int | None]:
    """Return the ranks of a run folder or an export; for another file, none at all."""
    if is_export(path):
        from traceq.formats.nsys.read import ranks_in  # noqa: PLC0415 - few need it

        numbers = ranks_in(path)
        return [*numbers] if len(numbers) > 1 else [None]
    if not is_run(path):
        return [None]
    ranks = [rank.rank for rank in read_run(path).ranks if rank.trace]
    return list(ranks) or [None]


def _with_kernels(trace: Trace, source: Path, options: LoadOptions) -> Trace:
    """Add what generated code tells, and say what it does not."""
    linked, missing = with_kernels(trace, source, options.own_code)
    fused = linked.fused
    named = fused["kernel"].n_unique()
    lines = fused.filter(pl.col("file").is_not_null())["kernel"].n_unique()
    unknown = f"; {counted(missing, 'compiled graph')} not there" if missing else ""
    notify(
        f"{source} has the ops of {counted(named, 'generated kernel')}, and lines of"
        f" {lines}{unknown}; modules are only in run folders of traceq collect"
    )
    return linked


def load_trace_with_notices(
    path: Path,
    options: LoadOptions,
    *,
    rank: int | None = None,
    say_lacks: bool = True,
) -> Trace:
    """Load a trace with progress, and warn of what of it could not be read.

    ``say_lacks`` is false for callers that report what was not recorded themselves.
    """
    with reading(path.name) as progress:
        trace = load(
            path,
            rank=options.rank if rank is None else rank,
            own=options.own_code,
            captures=options.captures,
            steps_by=options.steps_by,
            cache=options.use_cache,
            progress=progress,
        )
    if (source := options.inductor_code) and trace.fused.is_empty():
        trace = _with_kernels(trace, source, options)
    if trace.run is not None and (remedy := trace.run.labels.get("remedy")):
        notify(f"{path} was recorded with the remedy {remedy} of traceq try")
    for sentence in trace.facts.damage:
        notify(f"{path} is incomplete: {sentence}")
    # Ranks of one export were recorded alike.
    if trace.facts.lacks and say_lacks and not rank:
        notify(f"{path}: " + "; ".join(trace.facts.lacks))
    ranks = trace.facts.world_size or 1
    in_one_file = is_export(path) or is_report(path)
    if in_one_file and ranks > 1 and rank is None and options.rank is None:
        notify(
            f"{path} has {counted(ranks, 'rank')}, and rank {trace.facts.rank} is read:"
            " --rank N reads another one, traceq ranks compares all"
        )
    if (doubtful := trace.doubtful_step_ns) is not None:
        steps = trace.steps.filter("averaged")["time"]
        recorded = time(int(steps.sum()) / max(1, len(steps)))
        notify(
            f"{path}: a step takes {time(doubtful)} measured without the profiler, and"
            f" {recorded} as recorded: other steps were timed than traced, so the"
            " measured one is not used"
        )
    return trace


def load_recording(
    path: Path, options: LoadOptions, *, log: Path | None = None
) -> Recording:
    """Load what was recorded of the one program that a path is of."""
    with reading(path.name) as progress:
        program = single_program(path, cache=options.use_cache, progress=progress)
    return load_program(program, options, log=log)


def load_program(
    program: Program,
    options: LoadOptions,
    *,
    log: Path | None = None,
    say_lacks: bool = True,
) -> Recording:
    """Load what was recorded of a program: a trace or a run, a snapshot, logs."""
    path = program.trace
    run = read_run(path) if path and is_run(path) else None
    ranks = run.ranks if run else ()
    snapshots = {
        rank.rank: load_snapshot(rank.memory, options.own_code, rank)
        for rank in ranks
        if rank.memory
    }
    if program.snapshot:
        snapshots[0] = load_snapshot(program.snapshot, options.own_code)
    # Of a run that died before it was traced, memory may show why.
    untraced = run and snapshots and not any(rank.trace for rank in ranks)
    trace = None
    if path and not untraced:
        trace = load_trace_with_notices(path, options, say_lacks=say_lacks)
    logs = [*program.logs, *([log] if log else run.logs if run else [])]
    texts = [load_log(item) for item in logs]
    lines = pl.concat(texts) if logs else None
    for file, text in zip(logs, texts, strict=True):
        if trace and trace.fused.is_empty() and has_code(text) and runs_compiled(trace):
            trace = _with_kernels(trace, file, options)
    step_ns = trace.step_ns if trace else None
    if program.folder:
        from traceq.formats.fixture_origin import (  # noqa: PLC0415 - few need it
            ORIGIN,
            origin_step_ns,
            read_origin,
        )

        if (program.folder / ORIGIN).is_file():
            step_ns = origin_step_ns(read_origin(program.folder))
    failures = {rank.rank: rank.oom for rank in ranks if rank.oom}
    slow = {rank.rank: rank.slow for rank in ranks if rank.slow}
    return Recording(program.name, trace, lines, step_ns, snapshots, failures, slow)


def load_snapshot(
    path: Path, own_code: frozenset[str], rank: Rank | None = None
) -> Snapshot:
    """Read a snapshot, with what is known of whose code is on its stacks."""
    from traceq.formats.snapshot import read_snapshot  # noqa: PLC0415 - few need it

    owners = rank.owners if rank else NOBODY
    owners = structs.replace(owners, said=own_code)
    return replace(read_snapshot(path), owners=owners)


def load_log(path: Path) -> pl.DataFrame:
    """Return the lines of a log, and warn if only its beginning was read."""
    from traceq.formats.log import read_log  # noqa: PLC0415 - as above

    log = read_log(path)
    if log.cut:
        lines = counted(log.lines.height, "line")
        notify(f"{path} is long: only its first {lines} are read")
    return log.lines
