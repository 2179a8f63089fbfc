"""Words on a program that ran without a GPU: its time, and what would matter on one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from traceq.common.safe_text import printable
from traceq.common.units import share, time
from traceq.report.base.text import where, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.model.finding import Finding
    from traceq.model.lint_report import CpuLine, CpuTime, RecordingReport

HEADING = (
    "Would matter on a GPU (seen in the program's operators; no saving is claimed):"
)
LEVEL = "on a GPU"
_LEAST = 20


def would_matter(outcome: RecordingReport) -> list[Finding]:
    """Return the findings that would matter on a GPU."""
    return [finding for finding in outcome.findings if finding.would_matter_on_gpu]


def certain(outcome: RecordingReport) -> list[Finding]:
    """Return the other findings: they matter where the program ran."""
    return [finding for finding in outcome.findings if not finding.would_matter_on_gpu]


def verdict(outcome: RecordingReport) -> str:
    """Return one sentence on what would matter on a GPU."""
    count = len(would_matter(outcome))
    if not count:
        return "nothing that would matter on a GPU"
    they = "finding that would matter" if count == 1 else "findings that would matter"
    return f"{count} {they} on a GPU"


def phases(cpu_time: CpuTime) -> str:
    """Return the phases of a step with their share of it."""
    whole = sum(ns for _, ns in cpu_time.phases)
    return ", ".join(
        f"{phase} {time(ns)} ({share(ns, whole)})" for phase, ns in cpu_time.phases
    )


def facts(cpu_time: CpuTime) -> Iterator[tuple[str, str]]:
    """Yield phases and lines, each with its label."""
    if cpu_time.phases:
        yield "Phases", phases(cpu_time)
    for line in cpu_time.lines:
        yield _noun(cpu_time).capitalize(), f"{time(line.ns)} {_line(line)}"


def time_lines(cpu_time: CpuTime, width: int) -> Iterator[str]:
    """Yield the time of a step by phase and by line, in at most 8 lines."""
    if cpu_time.phases:
        text = f"Phases: {phases(cpu_time)}"
        yield from wrapped(text, max(width, _LEAST), first="", rest="  ")
    if not cpu_time.lines:
        return
    yield f"Longest {_noun(cpu_time)}s, as recorded:"
    times = [time(line.ns) for line in cpu_time.lines]
    widest = max(map(len, times))
    for text, line in zip(times, cpu_time.lines, strict=True):
        shown = f"  {text:>{widest}}  {_line(line)}"
        yield shown if len(shown) <= width else shown[: max(width, _LEAST) - 1] + "…"


def _noun(cpu_time: CpuTime) -> str:
    """Return what the rows are: without stacks, no line is known."""
    return "line" if any(line.place.source for line in cpu_time.lines) else "operator"


def _line(line: CpuLine) -> str:
    place = where(line.place) or printable(line.name or "")
    return f"{place} ({', '.join(line.phases)})" if line.phases else place


def cpu_data(cpu_time: CpuTime) -> dict[str, Any]:
    """Return the time of a step as plain data."""
    return {
        "phases": [{"phase": phase, "ns": round(ns)} for phase, ns in cpu_time.phases],
        "lines": [
            to_builtins(line) | {"ns": round(line.ns)}  # a place has plain fields
            for line in cpu_time.lines
        ],
    }
