"""Verdict: bound and duration of a step, and the sum of its findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from traceq.common import units
from traceq.common.safe_text import printable
from traceq.common.words import counted, listed
from traceq.model.finding import Severity
from traceq.report import bound as bound_words
from traceq.report.lint import content as words
from traceq.report.page.section import Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.model.lint_report import Bound, RecordingReport
    from traceq.model.trace import Trace
    from traceq.report.page.section import Subject


class Figure(NamedTuple):
    """A number that is worth large letters."""

    label: str
    value: str
    note: str = ""


def verdict(subject: Subject) -> Section:
    """Return the section that comes first."""
    outcome = subject.outcome
    trace = subject.recording.trace if subject.recording else None
    bound = outcome.bound
    title = "Verdict"
    if subject.number:
        title = f"{subject.number}. {words.short_name(outcome)}"
    return Section(
        key=subject.key("verdict"),
        title=title,
        template="verdict.html",
        context={
            "sentence": _sentence(
                bound_words.sentence(bound) if bound else _memory(outcome)
            ),
            "verdict": _sentence(words.verdict(outcome)),
            "figures": list(_figures(outcome)),
            "recorded": " · ".join(_recorded(outcome, trace)),
            "notes": [
                _sentence(note)
                for note in (words.step_kinds(outcome), *words.notes(outcome))
                if note
            ],
            "skipped": words.skipped(outcome),
            "skipped_count": counted(len(outcome.skipped), "rule"),
        },
    )


def _memory(outcome: RecordingReport) -> str:
    """Return the peak of memory and its worst finding, where there is no trace."""
    if outcome.memory is None:
        return ""
    serious = [
        finding for finding in outcome.findings if finding.severity is not Severity.info
    ]
    worst = f"; {printable(serious[0].message)}" if serious else ""
    return f"{words.facts(outcome)}{worst}"


def _sentence(text: str) -> str:
    """Return a text that begins and ends like a sentence."""
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _figures(outcome: RecordingReport) -> Iterator[Figure]:
    bound = outcome.bound
    if bound is not None:
        what = "Step" if bound.stepped else "Whole trace"
        yield Figure(what, units.time(bound.step_ns), bound_words.source(bound))
        if bound.step_from != "recorded":
            recorded = units.time(bound.recorded_step_ns)
            yield Figure("As recorded", recorded, _steps(outcome))
    if bound is not None and bound.bottleneck is not None:
        yield _bound(bound)
        yield Figure("GPU has work", units.share(bound.gpu_busy, 1), "of the step")
    if outcome.together:
        last = outcome.together[-1]
        factor = outcome.step_ns / last.step_ns if last.step_ns else 0.0
        after = f"{factor:.2g}× as fast" if factor else ""
        yield Figure("After the fixes", units.time(last.step_ns), after)
    if outcome.memory:
        peak = units.size(outcome.memory.allocated)
        reserved = f"{units.size(outcome.memory.reserved)} reserved"
        yield Figure("Memory peak", peak, reserved)


def _bound(bound: Bound) -> Figure:
    text = "GPU" if bound.by == "gpu" else "host"
    return Figure("Bound by", f"the {text}", "" if bound.sure else "likely")


def _steps(outcome: RecordingReport) -> str:
    if outcome.facts is None or not outcome.facts.steps_from:
        return ""
    return counted(outcome.steps, "step")


def _recorded(outcome: RecordingReport, trace: Trace | None) -> Iterator[str]:
    """Yield facts about the recording: the GPU, the versions, the trace's content."""
    facts = outcome.facts
    if facts is None:
        return
    if trace is not None:
        names = trace.devices.filter("used")["name"].drop_nulls()
        yield from names.unique(maintain_order=True).to_list()
    yield facts.torch
    if facts.runtime_version:
        yield facts.runtime_version
    yield f"{facts.events:,} events"
    kinds = {"shapes": facts.shapes, "stacks": facts.stacks, "memory": facts.memory}
    there = [kind for kind, recorded in kinds.items() if recorded]
    if there:
        yield f"with {listed(there)}"
    if facts.rank is not None and (facts.world_size or 1) > 1:
        yield f"rank {facts.rank} of {facts.world_size}"
