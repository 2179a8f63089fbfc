"""`traceq memory`: owners of the GPU's memory, from the allocator's snapshot."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.cli import output
from traceq.cli.deliver import deliver, refuse_to_lose, renderer, write_file
from traceq.cli.options import (
    GivenLabels,
    NoCache,
    OutputFile,
    Overwrite,
    Own,
    Runs,
    format_option,
    paths_argument,
    renamed,
)
from traceq.errors import UsageError

if TYPE_CHECKING:
    from traceq.analysis.memory.summary import MemorySummary

_TWO = 2


class Format(str, Enum):
    """Formats of the summary."""

    text = "text"
    json = "json"
    markdown = "markdown"
    html = "html"


def command(
    paths: Annotated[
        list[Path] | None,
        paths_argument(
            "Memory snapshots, folders or archives of them, run folders, URLs, or - for"
            " standard input; those of --runs, unless given."
        ),
    ] = None,
    *,
    form: Annotated[Format, format_option(Format)] = Format.text,
    file: OutputFile = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", hidden=True)] = None,
    overwrite: Overwrite = False,
    scaling: Annotated[
        str | None,
        typer.Option(
            help="Show how each category scales with this label of the recordings.",
            metavar="LABEL",
        ),
    ] = None,
    label: GivenLabels = None,
    runs: Runs = None,
    own: Own = None,
    no_cache: NoCache = False,
) -> None:
    """Show what holds the GPU's memory at its peak: by category, module and your line.

    Prints one screen for one snapshot and one row each for several, with leaks,
    fragmentation and OOMs. Nothing in a snapshot is executed.
    """
    from traceq.api.memory import memory_of_files
    from traceq.api.settings import load_options
    from traceq.inputs.labels import labelled

    files, labels = labelled(paths, label, runs)
    refuse_to_lose(file, files, overwrite=overwrite)
    refuse_to_lose(html, files, overwrite=overwrite)
    result = memory_of_files(files, labels, load_options(own=own, cache=not no_cache))
    summaries = list(result.summaries)
    if html is not None and summaries:
        renamed("--html FILE", "--format html -o FILE")
        write_file(html, _rendered(summaries, Format.html, to_file=True))
    to_file = file is not None
    if scaling is not None and summaries:
        deliver(_scaled(scaling, summaries, form, to_file=to_file), file)
    elif summaries:
        deliver(_rendered(summaries, form, to_file=to_file), file)
    if result.unread:
        count = len(summaries) + result.unread
        msg = f"{result.unread} of {count} files could not be read"
        raise UsageError(msg)


def _rendered(summaries: list[MemorySummary], form: Format, *, to_file: bool) -> str:
    if form is Format.html:
        return renderer("page.views:memory_page")(summaries)
    render = renderer(f"memory.{form.value}:render")
    if form is not Format.text:
        return render(summaries)
    width, color = output.screen(to_file=to_file)
    return render(summaries, width=width, color=color)


def _scaled(
    label: str, summaries: list[MemorySummary], form: Format, *, to_file: bool
) -> str:
    """Return how memory scales with a label; of several devices the fullest counts."""
    from traceq.analysis.memory.scaling import memory_scaling
    from traceq.report.base import markdown
    from traceq.report.memory import content as memory_content
    from traceq.report.memory import json as memory_json
    from traceq.report.memory import text as memory_text

    by_run: dict[str, tuple[float, MemorySummary]] = {}
    for summary in summaries:
        value = _value(summary, label)
        place = str(summary.run.folder) if summary.run else summary.facts.path
        fullest_yet = by_run.get(place)
        if (
            fullest_yet is None
            or fullest_yet[1].peak["allocated"] < summary.peak["allocated"]
        ):
            by_run[place] = (value, summary)
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
    names = [summary.name for summary in fullest]
    if form is Format.html:
        return renderer("page.views:scaling_page")(label, growths, values, names)
    if form is Format.json:
        return memory_json.render_scaling(label, growths, values, names)
    table = memory_content.scaling(label, growths, values)
    if form is Format.markdown:
        return markdown.table(table)
    width, color = output.screen(to_file=to_file)
    return memory_text.render_table(table, width=width, color=color)


def _value(summary: MemorySummary, label: str) -> float:
    from traceq.analysis.base.scaling_laws import label_number

    text = summary.labels.get(label)
    place = summary.run.folder if summary.run else summary.name
    if text is None:
        names = ", ".join(summary.labels) or "none"
        msg = (
            f"{place} has no label {label} (it has {names}): record it with traceq"
            f" collect --label {label}=VALUE, or give --label FILE:{label}=VALUE"
        )
        raise UsageError(msg)
    value = label_number(text)
    if value is None:
        msg = f"{place} has {label}={text}, which is not a number"
        raise UsageError(msg)
    return value
