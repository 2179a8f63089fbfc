"""Loading of a trace from its path: read, link, cache."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
from msgspec import structs

from traceq.cache.store import StreamingDigest
from traceq.cache.tables import find, keep
from traceq.common.expressions import text
from traceq.common.progress import report_progress
from traceq.errors import InputError, UsageError
from traceq.formats.chrome import read
from traceq.formats.facts import read_devices, read_facts
from traceq.formats.nsys.recognition import is_export
from traceq.formats.run import is_run, read_run
from traceq.graph.deep import cut
from traceq.graph.link import link
from traceq.graph.steps import SOURCES, representative
from traceq.inputs.discovery import resolve_trace
from traceq.inputs.display_path import parse_path
from traceq.inputs.options import LoadOptions
from traceq.model.names import CALL_OF_GRAPH
from traceq.model.owners import Owners
from traceq.model.schema import TABLES
from traceq.model.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from os import PathLike
    from pathlib import Path

    from traceq.formats.chrome import RawTrace
    from traceq.model.run import Rank, Run

_BASE = text("file").str.split("/").list.last()
_NO_LINE = pl.col("line").is_null() & pl.col("file").is_not_null()
# What only PyTorch's profiler writes, whatever it recorded.
_TORCH_CATEGORY = "Trace"
_TORCH_KEYS = {"schemaVersion", "deviceProperties", "baseTimeNanoseconds", "trace_id"}
_TELLING = ("ops", "kernels", "runtime", "annotations", "frames", "memory")


def load(  # noqa: PLR0913 - what is known beside the file
    path: str | PathLike[str],
    *,
    rank: int | None = None,
    own: Collection[str] = (),
    captures: Sequence[str | PathLike[str]] = (),
    steps_by: str = "",
    cache: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """Load a trace of PyTorch's profiler into linked Polars tables.

    Args:
        path: A trace, compressed or not, a folder or an archive with one trace in it,
            ``-`` for standard input, or a URL that fsspec can read. Of a run folder,
            the trace of one rank is loaded, with what is known of the run.
        rank: Rank to load of a run folder; by default the lowest.
        own: Packages, or folders of them, that are your own code, not a library.
        captures: Traces in which the CUDA graphs were captured that the recording
            replays; a run folder has its own.
        steps_by: Origin of the steps: ``profiler``, ``annotation``, ``optimizer``,
            ``repeats``, ``graph`` or ``none``; by default the first that has any.
        cache: Read and write the tables in the user's cache directory.
        progress: Function that is called with the number of bytes read and their total.

    Raises:
        InputError: The file is not such a trace.

    """
    if steps_by not in ("", *SOURCES):
        msg = f"steps cannot be taken from {steps_by!r}: give " + ", ".join(SOURCES)
        raise UsageError(msg)
    file = resolve_trace(parse_path(path), cache=cache, progress=progress)
    captured = [load(capture, own=own, cache=cache) for capture in captures]
    options = LoadOptions(
        own_code=frozenset(own), steps_by=steps_by, rank=rank, use_cache=cache
    )
    if is_run(file):
        trace = _load_rank(read_run(file), options, progress)
    elif rank is None or is_export(file):
        trace = _load(file, Owners(options.own_code), options, progress)
    else:
        msg = f"{file} is no run folder, so it has no rank {rank}: leave the rank out"
        raise UsageError(msg)
    return _with_captured_ops(trace, captured, own, cache=cache)


def _load_rank(
    run: Run, options: LoadOptions, progress: Callable[[int, int], None] | None
) -> Trace:
    """Load the trace of one rank, and say why if there is none."""
    number = options.rank
    wanted = [rank for rank in run.ranks if number is None or rank.rank == number]
    recorded = [rank for rank in wanted if rank.trace]
    if not recorded or recorded[0].trace is None:
        why = "; ".join(text for rank in wanted for text in rank.missing)
        if not wanted and number is not None:
            numbers = ", ".join(str(rank.rank) for rank in run.ranks) or "none"
            why = f"there is no rank {number}, the ranks are {numbers}"
        msg = f"{run.folder} has no trace: {why or 'nothing was recorded in it'}"
        raise InputError(msg)
    owners = structs.replace(recorded[0].owners, said=options.own_code)
    # Its file has no other ranks.
    options = structs.replace(options, rank=None)
    trace = _load(recorded[0].trace, owners, options, progress)
    return _of_rank(replace(trace, run=run, rank=recorded[0]), recorded[0], owners)


def _with_captured_ops(
    trace: Trace, captured: Sequence[Trace], own: Collection[str], *, cache: bool
) -> Trace:
    """Give the kernels of replayed CUDA graphs the ops of their capture."""
    replays = (trace.runtime["call"] == "graph launch").any()
    if not replays and not (trace.runtime["call"] == "capture").any():
        return replace(trace, captures=len(captured))
    from traceq.graph.cuda_graphs.captures import mapped  # noqa: PLC0415 - few traces have any

    rank, recorded = trace.rank, []
    if rank and replays:
        owners = structs.replace(rank.owners, said=frozenset(own))
        options = LoadOptions(use_cache=cache)
        for file in rank.captures:
            # What is wrong with one does not keep the trace from being read.
            with suppress(InputError):
                capture = _load(file, owners, options, None)
                # Without regions nothing tells which compiled code was captured.
                bare = capture.annotations.is_empty()
                here = replace(rank, compiled_code=None) if bare else rank
                recorded.append(_of_rank(capture, here, owners))
    captures = [*recorded, *captured]
    tables = mapped(
        trace.frames_by_name(), [item.frames_by_name() for item in captures]
    )
    if "kernels" in tables and any(item.facts.shapes for item in captures):
        trace = replace(trace, facts=replace(trace.facts, shapes=True))
    trace = replace(trace, captures=len(captures), **tables)  # type: ignore[arg-type]  # tables are its fields
    return _with_compiled_replays(trace, own) if "kernels" in tables else trace


def _with_compiled_replays(trace: Trace, own: Collection[str]) -> Trace:
    """Give what compiled code runs in replays the user's lines."""
    from traceq.graph.cuda_graphs.captures import replayed_regions  # noqa: PLC0415 - as above

    rank, fused_before = trace.rank, trace.fused
    regions = replayed_regions(trace.frames_by_name())
    if rank is None or regions.is_empty():
        return trace
    owners = structs.replace(rank.owners, said=frozenset(own))
    compiled = _with_compiled(replace(trace, annotations=regions), rank, owners)
    fused = compiled.fused.join(
        fused_before, on="op", how="anti", maintain_order="left"
    )
    fused = fused.with_columns(
        id=fused_before.height + pl.int_range(pl.len(), dtype=pl.UInt32)
    )
    return replace(
        compiled, annotations=trace.annotations, fused=pl.concat([fused_before, fused])
    )


def _with_first_lines(
    trace: Trace, first_lines: Mapping[tuple[str, str], int]
) -> Trace:
    """Give functions that ran when the profiler started the lines where they begin."""
    without = trace.frames.filter(_NO_LINE).select(_BASE, text("function")).unique()
    lines = {key: first_lines[key] for key in without.rows() if key in first_lines}
    if not lines:
        return trace
    placed = {
        name: _placed(table, lines)
        for name in TABLES
        for table in [getattr(trace, name)]
        if {"file", "line", "function"} <= {*table.columns}
    }
    return replace(trace, **placed)  # type: ignore[arg-type]  # tables are its fields


def _placed(table: pl.DataFrame, lines: Mapping[tuple[str, str], int]) -> pl.DataFrame:
    line = pl.col("line")
    for (file, function), number in lines.items():
        named = (text("function") == function) & _BASE.eq(file)
        number_of_line = pl.lit(number, table.schema["line"])
        line = pl.when(_NO_LINE & named).then(number_of_line).otherwise(line)
    return table.with_columns(line=line)


def _of_rank(trace: Trace, rank: Rank, owners: Owners) -> Trace:
    """Correct what a trace alone can only guess by what its rank knows."""
    if rank.torch:
        facts = replace(trace.facts, torch_from=rank.torch, torch_to=rank.torch)
        trace = replace(trace, facts=facts)
    trace = _with_first_lines(trace, rank.first_lines)
    trace = with_sources(trace, rank.sources)
    trace = _with_compiled(trace, rank, owners)
    return replace(trace, steps=_averaged(trace.steps, rank))


def _averaged(steps: pl.DataFrame, rank: Rank) -> pl.DataFrame:
    """Mark the steps that averages are over, by what is known of the program's steps.

    Warm-up was over when whole periods were traced: a long first step is one of them.
    """
    if rank.warm or rank.window == "period":
        steps = steps.with_columns(
            warmup=pl.lit(value=False), averaged=pl.lit(value=True)
        )
    timed = rank.step_time
    if timed is None or timed.long is None or rank.window in {"period", "typical"}:
        return steps
    return steps.with_columns(representative(steps, timed.long, timed.long_share))


def _with_compiled(trace: Trace, rank: Rank, owners: Owners) -> Trace:
    """Give what torch.compile generated the user's lines, or say why it has none."""
    if rank.compiled_code is None:
        return trace
    try:
        return with_compiled_code(trace, rank.compiled_code, owners)
    except InputError as error:
        noted = replace(rank, missing=(*rank.missing, str(error)))
        return replace(trace, rank=noted)


def with_compiled_code(trace: Trace, file: Path, owners: Owners) -> Trace:
    """Return a trace with the lines of compiled code, from what collect kept of it.

    Raises ``InputError`` for a file that cannot be read.
    """
    from traceq.formats.inductor_code import read_compiled  # noqa: PLC0415 - few need it
    from traceq.graph.inductor.lines import with_compiled  # noqa: PLC0415 - as above

    compiled = read_compiled(file)
    tables = with_compiled(trace.frames_by_name(), compiled, owners)
    rank = trace.rank
    if rank is not None:
        reasons = {
            generated_code.cudagraphs_disabled for generated_code in compiled.code
        } - {None}
        rank = replace(rank, graphs_disabled=tuple(sorted(map(str, reasons))))
    return replace(trace, rank=rank, **tables)  # type: ignore[arg-type]  # tables are its fields


def runs_compiled(trace: Trace) -> bool:
    """Return whether a trace has regions of compiled code."""
    return bool(
        trace.annotations.select(text("name").str.contains(CALL_OF_GRAPH).any()).item()
    )


def with_kernels(
    trace: Trace, source: Path, own: Collection[str] = ()
) -> tuple[Trace, int]:
    """Return a trace with what inductor's own files, or its log, tell of its kernels.

    Also returns how many compiled graphs of the trace have no code there. Raises
    ``InputError`` for a folder without generated code, and for an unreadable log.
    """
    from traceq.formats.compile_log import read_logged  # noqa: PLC0415 - few need it
    from traceq.formats.inductor_code import read_generated  # noqa: PLC0415 - as above
    from traceq.graph.cuda_graphs.captures import replayed_regions  # noqa: PLC0415 - as above
    from traceq.graph.inductor.lines import keyed, with_compiled  # noqa: PLC0415 - as above

    tables = trace.frames_by_name()
    regions = [trace.annotations, replayed_regions(tables)]
    tables["annotations"] = pl.concat(regions)
    files = trace.frames["file"].drop_nulls().unique().cast(pl.String)
    read_source = read_generated if source.is_dir() else read_logged
    code, missing = keyed(tables, read_source(source, files.to_list()))
    compiled = with_compiled(tables, code, Owners(frozenset(own)))
    return replace(trace, **compiled), missing  # type: ignore[arg-type]  # tables are its fields


def with_sources(trace: Trace, sources: Mapping[str, str]) -> Trace:
    """Return a trace with the lines that source files tell, given by their names."""
    own_files = set(trace.frames.filter("own")["file"].unique().cast(pl.String))
    used = {name: content for name, content in sources.items() if name in own_files}
    if not used:
        return trace
    from traceq.graph.source.lines import with_source_lines  # noqa: PLC0415 - as above

    tables = with_source_lines(trace.frames_by_name(), used)
    return replace(trace, **tables)  # type: ignore[arg-type]  # tables are its fields


def _load(
    file: Path,
    owners: Owners,
    options: LoadOptions,
    progress: Callable[[int, int], None] | None,
) -> Trace:
    """Load the tables of a file: from the cache, if it has them."""
    steps_by, rank = options.steps_by, options.rank
    if is_export(file):
        from traceq.inputs.load_export import read_export  # noqa: PLC0415 - few are one

        def read_file() -> Trace:
            return read_export(file, rank, owners, steps_by, progress)

    else:

        def read_file() -> Trace:
            return _read(file, owners, steps_by, progress, heard.hear)

    heard = StreamingDigest()
    if not options.use_cache or not file.is_file():
        return read_file()
    key = owners.key + steps_by + ("" if rank is None else f" rank {rank}")
    if (cached := find(file, key)) is not None:
        return cached
    status = file.stat()
    trace = read_file()
    heard.note(file, status)
    keep(file, trace, status, key)
    return trace


def _nothing_in(file: Path, raw: RawTrace) -> str:
    """Return why a trace without anything to look at is refused."""
    if (
        _TORCH_CATEGORY in raw.categories
        or _TORCH_KEYS & (raw.header | raw.footer).keys()
    ):
        return (
            f"{file} is a trace of PyTorch's profiler that recorded no operator, kernel"
            " or region: let the program work between its start and its stop"
        )
    return (
        f"{file} is a Chrome trace, but not one of PyTorch's profiler: it has no"
        " operator, kernel or region; give the file that export_chrome_trace wrote"
    )


def _read(
    file: Path,
    owners: Owners,
    steps_by: str,
    progress: Callable[[int, int], None] | None,
    heard: Callable[[bytes], None] | None = None,
) -> Trace:
    raw = read(file, progress, heard)
    if not any(raw.tables[name].height for name in _TELLING):
        raise InputError(_nothing_in(file, raw))
    report_progress("graph")
    linked = link(raw.tables, owners, steps_by)
    tables, steps = linked.tables, linked.steps
    tables["devices"] = read_devices(raw)
    facts = read_facts(file, raw, steps.source, steps.sure)
    if linked.too_deep:
        facts = replace(facts, damage=(*facts.damage, cut(linked.too_deep)))
    return Trace.of(facts, tables)
