"""The time of a step by cause, as one bar: the GPU's work, and what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from traceq.analysis.time.gpu_causes import ON_GPU
from traceq.common import units
from traceq.report import bound as bound_words
from traceq.report.page.colors import color
from traceq.report.page.section import Section

if TYPE_CHECKING:
    from traceq.report.page.section import Subject


class Part(NamedTuple):
    """A piece of the bar."""

    cause: str
    color: str
    idle: bool
    """True if the GPU waits in it."""
    time: str
    share: str
    left: float
    """Start, in percent of the bar."""
    width: float


def step_bar(subject: Subject) -> Section | None:
    """Return the bar and its legend; none without GPU work."""
    bound = subject.outcome.bound
    if bound is None or bound.bottleneck is None or not bound.bottleneck.step_ns:
        return None
    whole = bound.bottleneck.step_ns
    parts, left = [], 0.0
    for cause, ns in bound_words.parts(bound):
        width = min(100 * ns / whole, 100 - left)
        parts.append(
            Part(
                bound_words.cause_name(cause),
                color(cause),
                cause not in ON_GPU,
                units.time(ns),
                units.share(ns, whole),
                round(left, 3),
                round(width, 3),
            )
        )
        left += width
    return Section(
        key=subject.key("step"),
        title="Where the step goes",
        template="step_bar.html",
        context={
            "parts": parts,
            "step": units.time(bound.step_ns),
            "replayed": units.time(whole),
            "source": bound_words.source(bound),
            "by_step": bound_words.by_step(bound),
        },
    )
