"""Cost of the regions and modules of a program: ``traceq.regions``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from traceq.analysis.replay.phases import estimated_host
from traceq.analysis.time.regions import BY_MODULE, REGION, calls_named
from traceq.analysis.time.regions import regions as regions_of
from traceq.api import settings
from traceq.api.result import Names, Result, paths, several
from traceq.common.progress import collect_notices
from traceq.errors import InputError, UsageError
from traceq.inputs.discovery import traces
from traceq.inputs.load_recording import load_trace_with_notices
from traceq.report import regions as report

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from traceq.analysis.time.regions import Regions
    from traceq.inputs.options import LoadOptions
    from traceq.report.base.content import Content

_TWO = 2


@dataclass(frozen=True, kw_only=True, repr=False)
class RegionsResult(Result):
    """Costs of the regions or modules, and the comparison of two."""

    shown: report.Shown
    """The regions of each trace, and those that are compared."""

    def text(self, *, width: int | None = None, color: bool = False) -> str:
        """Return the text for a terminal of this width."""
        return report.text(self.shown, width=width, color=color)

    def json(self) -> str:
        """Return the JSON."""
        return report.json(self.shown)

    def contents(self) -> Sequence[Content]:
        """Return what a notebook shows."""
        return report.contents(self.shown)


def regions(
    recording: Names,
    *,
    by: str = REGION,
    compare: tuple[str, str] | None = None,
    instances: bool = False,
    top: int = 30,
    step_ms: float | None = None,
    own: str | Iterable[str] | None = None,
    steps_by: str | None = None,
    rank: int | None = None,
    cache: bool = True,
) -> RegionsResult:
    """Return what each region or module costs: host, GPU, its backward, idle time.

    Args:
        recording: A trace or a run folder, or two of them to compare.
        by: ``region`` for what the program names by ``record_function``, or ``module``.
        compare: Two names to compare.
        instances: Give each layer a row of its own.
        top: Number of rows.
        step_ms: Step time measured without the profiler, in ms.
        own: Packages, or folders of them, that are your own code, not a library.
        steps_by: Origin of the steps: ``profiler``, ``annotation``, ``optimizer``,
            ``repeats``, ``graph`` or ``none``; by default the first that has any.
        rank: Rank to read of a run folder or an Nsight Systems export; by default the
            lowest.
        cache: Read and write the cache.

    Raises:
        TraceqError: The work cannot be done, for the reason in its one sentence.

    Examples:
        >>> found = regions("fixtures/attn_mask_fmha/trace.json.gz", by="module", top=1)
        >>> found.to_dict()["by"]
        'module'

    """
    if by not in (REGION, BY_MODULE):
        msg = f"by={by!r} is none of {REGION!r} and {BY_MODULE!r}"
        raise UsageError(msg)
    step_ns = settings.nanoseconds(step_ms)
    options = settings.load_options(
        own=several(own), steps_by=steps_by, rank=rank, cache=cache
    )
    with collect_notices() as notes:
        files = paths(recording)
        read, unread = traces(files, cache=cache)
        if unread:
            msg = f"{unread} of {len(files)} files could not be read"
            raise UsageError(msg)
        of_each = [_regions(path, by, options, step_ns) for path in read]
    shown = report.Shown(
        paths=tuple(map(str, read)),
        regions=tuple(of_each),
        by=by,
        instances=instances or by == REGION,
        compared=tuple(_compared(of_each, compare)),
        top=top,
    )
    return RegionsResult(shown=shown, notes=tuple(notes))


def _regions(path: Path, by: str, options: LoadOptions, step_ns: int | None) -> Regions:
    trace = load_trace_with_notices(path, options)
    regions = regions_of(trace, by)
    if not regions.calls.height:
        why = _no_regions(by, by_nsys=bool(trace.facts.recorder))
        msg = f"{path} has nothing to show: {why}"
        raise InputError(msg)
    estimated = estimated_host(trace, regions.calls, step_ns or trace.step_ns)
    return replace(regions, calls=regions.calls.with_columns(host_estimated=estimated))


def _no_regions(by: str, *, by_nsys: bool) -> str:
    """Return why there is nothing to show, with the remedy."""
    if by == REGION:
        mark = "torch.cuda.nvtx.range" if by_nsys else "torch.profiler.record_function"
        return (
            f"it names no region: put {mark} around parts of the program, or ask for"
            " --by module"
        )
    how = "with nsys profile --pytorch=functions-trace"
    if not by_nsys:
        how = "with stacks, as traceq collect does"
    return f"it has no modules: record {how}"


def _compared(
    of_each: list[Regions], names: tuple[str, str] | None
) -> list[report.Compared]:
    if names is None:
        both = report.compared_names(of_each) if len(of_each) == _TWO else []
        return [_pair(of_each, (name, name)) for name in both]
    return [_pair(of_each if len(of_each) == _TWO else [of_each[0]] * 2, names)]


def _pair(of_each: list[Regions], names: tuple[str, str]) -> report.Compared:
    first, second = (
        calls_named(one, name) for one, name in zip(of_each, names, strict=True)
    )
    for name, calls in ((names[0], first), (names[1], second)):
        if not calls.height:
            msg = f"there is no region {name}: traceq regions lists what there is"
            raise UsageError(msg)
    return report.Compared(names, (of_each[0], of_each[1]), (first, second))
