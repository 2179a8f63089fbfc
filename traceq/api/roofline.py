"""Roofline of each op: ``traceq.roofline``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceq.analysis.replay.bound import bound_of
from traceq.analysis.replay.roofline_savings import by_op
from traceq.analysis.time.roofline import roofline as roofline_of
from traceq.api import settings
from traceq.api.result import Name, Result, several
from traceq.common.progress import collect_notices
from traceq.errors import InputError, UsageError
from traceq.inputs.discovery import traces
from traceq.inputs.display_path import parse_path
from traceq.inputs.load_recording import load_trace_with_notices
from traceq.linter.need import Need, lacking
from traceq.report import roofline as report

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from traceq.report.base.content import Content


@dataclass(frozen=True, kw_only=True, repr=False)
class RooflineResult(Result):
    """Distance of each op of a step from the GPU's peaks."""

    shown: report.Shown
    """The ops, the GPU's peaks, and what a step loses."""

    def text(self, *, width: int | None = None, color: bool = False) -> str:
        """Return the text for a terminal of this width."""
        return report.text(self.shown, width=width, color=color)

    def json(self) -> str:
        """Return the JSON."""
        return report.json(self.shown)

    def contents(self) -> Sequence[Content]:
        """Return what a notebook shows."""
        return [report.content(self.shown)]


def roofline(
    recording: Name,
    *,
    top: int = 20,
    step_ms: float | None = None,
    own: str | Iterable[str] | None = None,
    steps_by: str | None = None,
    rank: int | None = None,
    cache: bool = True,
) -> RooflineResult:
    """Return how far each op is from what the GPU can do, and what that costs a step.

    Args:
        recording: A trace or a run folder.
        top: Number of ops.
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
        >>> found = roofline("fixtures/attn_mask_fmha/trace.json.gz", top=3)
        >>> len(found.contents()[0].tables[0].rows)
        3

    """
    path = parse_path(recording)
    options = settings.load_options(
        own=several(own), steps_by=steps_by, rank=rank, cache=cache
    )
    with collect_notices() as notes:
        read, unread = traces([path], cache=cache)
        if unread or len(read) != 1:
            msg = f"{path} has {len(read)} traces: give one of them"
            raise UsageError(msg)
        trace = load_trace_with_notices(read[0], options)
    step_ns = settings.nanoseconds(step_ms) or trace.step_ns
    if not trace.facts.gpu or not trace.facts.shapes:
        lacks = lacking(Need.SHAPES, trace.facts.recorder)
        msg = f"{path}: {lacks}" if trace.facts.gpu else f"{path} has no GPU work"
        raise InputError(msg)
    ops = roofline_of(trace)
    shown = report.Shown(
        str(read[0]),
        ops,
        by_op(trace, ops, step_ns),
        bound_of(trace, step_ns).step_ns,
        top,
        dtypes_inferred=trace.facts.dtypes_inferred,
    )
    return RooflineResult(shown=shown, notes=tuple(notes))
