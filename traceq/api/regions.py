"""Cost of the regions and modules of a program: ``traceq.regions``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from traceq.analysis.replay.phases import estimated_host
from traceq.analysis.time.regions import BY_MODULE, REGION, calls_named
from traceq.analysis.time.regions import regions as regions_of
from traceq.api import settings
from traceq.api.result import Names, Result, paths, several
from traceq.common.progress import noted
from traceq.errors import InputError, UsageError
from traceq.inputs.discovery import traces
from traceq.inputs.load_recording import load_shown
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
    """What each region or module costs, and how two differ."""

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
    cache: bool = True,
) -> RegionsResult:
    """Return what each region or module costs: host, GPU, its backward, idle time.

    >>> found = regions("fixtures/attn_mask_fmha/trace.json.gz", by="module", top=1)
    >>> found.to_dict()["by"]
    'module'

    ``recording`` is a trace, a run folder, or two of them, of which each region is
    compared; ``by`` is ``"region"``, what the program names by ``record_function``, or
    ``"module"``; ``compare`` are two names to compare, ``instances`` is whether each
    layer has a row, and ``top`` how many rows there are; ``step_ms`` is the step time
    measured without the profiler, for the host's time without it; ``own`` and
    ``steps_by`` are as of :func:`traceq.lint`.

    Raises :class:`traceq.errors.TraceqError` with one sentence for what cannot be
    done.
    """
    if by not in (REGION, BY_MODULE):
        msg = f"by={by!r} is none of {REGION!r} and {BY_MODULE!r}"
        raise UsageError(msg)
    step_ns = settings.nanoseconds(step_ms)
    options = settings.load_options(own=several(own), steps_by=steps_by, cache=cache)
    with noted() as notes:
        files = paths(recording)
        given, unread = traces(files, cache=cache)
        if unread:
            msg = f"{unread} of {len(files)} files could not be read"
            raise UsageError(msg)
        found = [_regions(one, by, options, step_ns) for one in given]
    shown = report.Shown(
        paths=tuple(map(str, given)),
        found=tuple(found),
        by=by,
        instances=instances or by == REGION,
        compared=tuple(_compared(found, compare)),
        top=top,
    )
    return RegionsResult(shown=shown, notes=tuple(notes))


def _regions(path: Path, by: str, options: LoadOptions, step_ns: int | None) -> Regions:
    trace = load_shown(path, options)
    found = regions_of(trace, by)
    if not found.calls.height:
        why = (
            "it names no region: put torch.profiler.record_function around parts of"
            " the program, or ask for --by module"
            if by == REGION
            else "it has no modules: record with stacks, as traceq collect does"
        )
        msg = f"{path} has nothing to show: {why}"
        raise InputError(msg)
    estimated = estimated_host(trace, found.calls, step_ns or trace.step_ns)
    return replace(found, calls=found.calls.with_columns(host_estimated=estimated))


def _compared(
    found: list[Regions], names: tuple[str, str] | None
) -> list[report.Compared]:
    if names is None:
        both = report.compared_names(found) if len(found) == _TWO else []
        return [_pair(found, (name, name)) for name in both]
    return [_pair(found if len(found) == _TWO else [found[0]] * 2, names)]


def _pair(found: list[Regions], names: tuple[str, str]) -> report.Compared:
    first, second = (
        calls_named(one, name) for one, name in zip(found, names, strict=True)
    )
    for name, calls in ((names[0], first), (names[1], second)):
        if not calls.height:
            msg = f"there is no region {name}: traceq regions lists what there is"
            raise UsageError(msg)
    return report.Compared(names, (found[0], found[1]), (first, second))
