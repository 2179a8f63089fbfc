"""Time of a step by part: ``traceq.summary``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct

from traceq.analysis.summary import Summary, summarise
from traceq.api import settings
from traceq.api.result import Name, Names, Result, path, paths, several
from traceq.api.start_up import warn_of_start
from traceq.common.progress import collect_notices, notify
from traceq.errors import TraceqError
from traceq.inputs.discovery import traces
from traceq.inputs.labels import Labels, labelled
from traceq.inputs.load_recording import load_trace_with_notices, ranks_of
from traceq.report.base.content import Content
from traceq.report.summary import json as summary_json
from traceq.report.summary import text as summary_text
from traceq.report.summary.content import content
from traceq.report.summary.overview import overview

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from traceq.inputs.options import LoadOptions
    from traceq.model.trace import Trace


@dataclass(frozen=True, kw_only=True, repr=False)
class SummaryResult(Result):
    """Summaries of the time of a step, one for each trace."""

    summaries: tuple[Summary, ...]
    """In the order of the paths, and of the ranks of a run."""
    traces: tuple[Trace, ...] = ()
    """Their tables: as long as the result is kept, so are they."""

    @property
    def pairs(self) -> list[tuple[Summary, Trace]]:
        """Each summary with its trace."""
        return list(zip(self.summaries, self.traces, strict=True))

    def text(self, *, width: int | None = None, color: bool = False) -> str:
        """Return the text for a terminal of this width."""
        return summary_text.render(self.summaries, width=width, color=color)

    def json(self) -> str:
        """Return the JSON."""
        return summary_json.render(self.summaries)

    def contents(self) -> Sequence[Content]:
        """Return what a notebook shows."""
        if len(self.summaries) == 1:
            return [content(self.summaries[0])]
        return [Content("", (), (), (overview(self.summaries),))]


class SummaryOptions(Struct, frozen=True, kw_only=True):
    """Options of the summaries."""

    load: LoadOptions
    labels: Labels
    step_ns: int | None = None
    """Step time measured without the profiler."""
    critical: bool = False
    """Add the critical path."""
    host: bool = False
    """Add the account of the host's time."""
    gpu: bool = False
    """Add the account of the GPU's busy time."""


def summary(
    recording: Names | None = None,
    *,
    critical_path: bool = False,
    host: bool = False,
    gpu: bool = False,
    step_ms: float | None = None,
    label: str | Iterable[str] | None = None,
    runs: Name | None = None,
    captures: Names | None = None,
    kernels: Name | None = None,
    own: str | Iterable[str] | None = None,
    steps_by: str | None = None,
    cache: bool = True,
) -> SummaryResult:
    """Return where the time of a step goes: what bounds it, phases, ops, kernels.

    Args:
        recording: A path or several: traces, folders or archives of them, run folders,
            URLs.
        critical_path: Add the work that decides how long a step takes.
        host: Add an account of the host's time.
        gpu: Add an account of the GPU's busy time: what its work needs, and losses.
        step_ms: Step time measured without the profiler, in ms.
        label: Labels of recordings, each as ``FILE:KEY=VALUE``.
        runs: TOML file that lists recordings with their labels.
        captures: Traces in which the CUDA graphs were captured that the recording
            replays; a run folder has its own.
        kernels: Folder with the code that inductor generated, for traces without a run
            folder.
        own: Packages, or folders of them, that are your own code, not a library.
        steps_by: Origin of the steps: ``profiler``, ``annotation``, ``optimizer``,
            ``repeats``, ``graph`` or ``none``; by default the first that has any.
        cache: Read and write the cache.

    Raises:
        TraceqError: The work cannot be done, for the reason in its one sentence.

    Examples:
        >>> found = summary("fixtures/attn_mask_fmha/trace.json.gz")
        >>> found.summaries[0].bound.by, found.to_dict()["traces"][0]["facts"]["gpu"]
        ('gpu', True)

    """
    files = paths(recording) or None
    files, labels = labelled(files, list(several(label)) or None, path(runs))
    load = settings.load_options(
        own=several(own),
        steps_by=steps_by,
        captures=paths(captures),
        kernels=path(kernels),
        cache=cache,
    )
    options = SummaryOptions(
        load=load,
        labels=labels,
        step_ns=settings.nanoseconds(step_ms),
        critical=critical_path,
        host=host,
        gpu=gpu,
    )
    return summarise_files(files, options)


def summarise_files(paths: Sequence[Path], options: SummaryOptions) -> SummaryResult:
    """Return the summaries of traces, as :func:`summary`."""
    with collect_notices() as notes:
        files, unread = traces(paths, cache=options.load.use_cache)
        options.labels.refuse_unused([*paths, *files])
        alone = len(files) == 1 and not unread
        results = [
            _summary(file, rank, options, alone=alone)
            for file in files
            for rank in ranks_of(file)
        ]
    read = [result for result in results if result is not None]
    return SummaryResult(
        summaries=tuple(summary for summary, _ in read),
        traces=tuple(trace for _, trace in read),
        notes=tuple(notes),
        unread=unread + len(results) - len(read),
    )


def _summary(
    file: Path, rank: int | None, options: SummaryOptions, *, alone: bool
) -> tuple[Summary, Trace] | None:
    """Summarise a trace; one that cannot be read does not keep the others from it."""
    try:
        trace = load_trace_with_notices(file, options.load, rank=rank)
        warn_of_start(file, trace)
        result = summarise(
            trace,
            step_ns=options.labels.step_ns(file) or options.step_ns,
            critical=options.critical,
            host=options.host,
            gpu=options.gpu,
            labels=options.labels.of(file, trace.run),
        )
    except TraceqError as error:
        if alone:
            raise
        notify(str(error))
        return None
    return result, trace
