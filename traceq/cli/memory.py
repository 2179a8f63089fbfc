"""`traceq memory`: what holds the GPU's memory, from the allocator's snapshot."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.analysis.memory.history import History
from traceq.analysis.memory.scaling import memory_scaling
from traceq.analysis.memory.summary import MemorySummary, summarise_memory
from traceq.cli import output
from traceq.cli.options import (
    FORMAT,
    NoCache,
    OutputFile,
    Overwrite,
    Own,
    paths_argument,
    renamed,
)
from traceq.cli.writing import deliver, refuse_to_lose, write_file
from traceq.errors import InputError, TraceqError, UsageError
from traceq.formats.run import is_run, read_run
from traceq.opening.recordings import load_shown, programs, snapshot_of
from traceq.opening.settings import use_own
from traceq.report.base import markdown
from traceq.report.memory import content as memory_content
from traceq.report.memory import html as memory_html
from traceq.report.memory import json as memory_json
from traceq.report.memory import markdown as memory_markdown
from traceq.report.memory import text as memory_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.given import Program
    from traceq.model.run import Run
    from traceq.trace import Trace

_TWO = 2


class Format(str, Enum):
    """How to write it."""

    text = "text"
    json = "json"
    markdown = "markdown"
    html = "html"


def command(  # noqa: PLR0913 - one parameter an option
    paths: Annotated[
        list[Path],
        paths_argument(
            "Memory snapshots, folders or archives of them, run folders, URLs, or - for"
            " standard input."
        ),
    ],
    *,
    form: Annotated[Format, FORMAT] = Format.text,
    file: OutputFile = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", hidden=True)] = None,
    overwrite: Overwrite = False,
    scaling: Annotated[
        str | None,
        typer.Option(
            help="Show how each category scales with this label of the runs.",
            metavar="LABEL",
        ),
    ] = None,
    own: Own = None,
    no_cache: NoCache = False,
) -> None:
    """Show what holds the GPU's memory at its peak: by category, module and your line.

    Prints one screen for one snapshot and one row each for several, with leaks,
    fragmentation and OOMs. Nothing in a snapshot is executed.
    """
    refuse_to_lose(file, paths, overwrite=overwrite)
    use_own(own)
    refuse_to_lose(html, paths, overwrite=overwrite)
    given, unread = programs(paths, cache=not no_cache)
    alone = len(given) == 1 and not unread
    found = [_summaries(one, cache=not no_cache, alone=alone) for one in given]
    summaries = [summary for several in found if several for summary in several]
    if html is not None and summaries:
        renamed("--html FILE", "--format html -o FILE")
        write_file(html, memory_html.render(summaries))
    to_file = file is not None
    if scaling is not None and summaries:
        deliver(_scaled(scaling, summaries, form, to_file=to_file), file)
    elif summaries:
        deliver(_rendered(summaries, form, to_file=to_file), file)
    unread += sum(several is None for several in found)
    if unread:
        msg = f"{unread} of {len(summaries) + unread} files could not be read"
        raise UsageError(msg)


def _summaries(
    program: Program, *, cache: bool, alone: bool
) -> list[MemorySummary] | None:
    """Summarise a program; none if it cannot be read and there are others."""
    try:
        found = list(_read(program, cache=cache))
        if not found:
            msg = f"{program.name} is a memory snapshot in which nothing is reserved"
            raise InputError(msg)
    except TraceqError as error:
        if alone:
            raise
        output.say(str(error))
        return None
    return found


def _read(program: Program, *, cache: bool) -> Iterator[MemorySummary]:
    path = program.trace
    if path is None or not is_run(path):
        # Of a file that is none, it says what it is.
        snapshot = snapshot_of(program.snapshot or path or program.logs[0])
        trace = _trace(path, None, cache=cache) if path else None
        yield from summarise_memory(History(snapshot, trace), program.name)
        return
    run = read_run(path)
    recorded = [rank for rank in run.ranks if rank.memory]
    if not recorded:
        missing = [text for rank in run.ranks for text in rank.missing]
        why = "; ".join(missing) or "nothing was recorded in it"
        msg = f"{path} has no memory snapshot: {why}"
        raise InputError(msg)
    for rank in recorded:
        name = str(path) + (f", rank {rank.rank}" if len(recorded) > 1 else "")
        snapshot = snapshot_of(rank.memory or path, rank)
        trace = _trace(path, rank.rank, cache=cache) if rank.trace else None
        yield from summarise_memory(History(snapshot, trace), name, run=run)


def _trace(path: Path, rank: int | None, *, cache: bool) -> Trace | None:
    """Load the trace, which has the modules; none if it cannot be read."""
    try:
        return load_shown(path, rank=rank, cache=cache)
    except TraceqError as error:
        output.say(str(error))
        return None


def _rendered(summaries: list[MemorySummary], form: Format, *, to_file: bool) -> str:
    if form is Format.html:
        return memory_html.render(summaries)
    if form is Format.json:
        return memory_json.render(summaries)
    if form is Format.markdown:
        return memory_markdown.render(summaries)
    width, color = _screen(to_file=to_file)
    return memory_text.render(summaries, width=width, color=color)


def _screen(*, to_file: bool) -> tuple[int | None, bool]:
    """Return the width of lines and whether they are coloured: not in a file."""
    return (None, False) if to_file else (output.width(), output.color())


def _scaled(
    label: str, summaries: list[MemorySummary], form: Format, *, to_file: bool
) -> str:
    """Return how memory scales with a label; of several devices the fullest counts."""
    if form is Format.html:
        msg = "--scaling has no HTML: give --format text, json or markdown"
        raise UsageError(msg)
    by_run: dict[Path, tuple[float, MemorySummary]] = {}
    for summary in summaries:
        if summary.run is None:
            msg = f"{summary.name} is not a run folder, so it has no label {label}"
            raise UsageError(msg)
        value = _value(summary.run, label)
        known = by_run.get(summary.run.folder)
        if known is None or known[1].peak["allocated"] < summary.peak["allocated"]:
            by_run[summary.run.folder] = (value, summary)
    pairs = sorted(by_run.values(), key=lambda pair: pair[0])
    values = [value for value, _ in pairs]
    if len(set(values)) < _TWO:
        msg = (
            f"all runs have the same {label}, so they do not show how memory scales"
            " with it: give runs with other values"
        )
        raise UsageError(msg)
    fullest = [summary for _, summary in pairs]
    growths = memory_scaling(fullest, values)
    if form is Format.json:
        names = [summary.name for summary in fullest]
        return memory_json.render_scaling(label, growths, values, names)
    table = memory_content.scaling(label, growths, values)
    if form is Format.markdown:
        return markdown.table(table)
    width, color = _screen(to_file=to_file)
    return memory_text.render_table(table, width=width, color=color)


def _value(run: Run, label: str) -> float:
    text = run.labels.get(label)
    if text is None:
        known = ", ".join(run.labels) or "none"
        msg = (
            f"{run.folder} has no label {label} (it has {known}): record it with"
            f" traceq collect --label {label}=VALUE"
        )
        raise UsageError(msg)
    try:
        return float(text)
    except ValueError:
        msg = f"{run.folder} has {label}={text}, which is not a number"
        raise UsageError(msg) from None
