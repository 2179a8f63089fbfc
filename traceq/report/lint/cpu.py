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
    from traceq.model.lint_report import CpuLine, CpuTime, Outcome

HEADING = (
    "Would matter on a GPU (seen in the program's operators; no saving is claimed):"
)
LEVEL = "on a GPU"
_LEAST = 20


def would_matter(outcome: Outcome) -> list[Finding]:
    """Return the findings that would matter on a GPU."""
    return [one for one in outcome.findings if one.would_matter_on_gpu]


def certain(outcome: Outcome) -> list[Finding]:
    """Return the other findings: they matter where the program ran."""
    return [one for one in outcome.findings if not one.would_matter_on_gpu]


def verdict(outcome: Outcome) -> str:
    """Return one sentence on what would matter on a GPU."""
    found = len(would_matter(outcome))
    if not found:
        return "nothing that would matter on a GPU"
    they = "finding that would matter" if found == 1 else "findings that would matter"
    return f"{found} {they} on a GPU"


def phases(found: CpuTime) -> str:
    """Return the phases of a step with their share of it."""
    whole = sum(ns for _, ns in found.phases)
    return ", ".join(
        f"{phase} {time(ns)} ({share(ns, whole)})" for phase, ns in found.phases
    )


def facts(found: CpuTime) -> Iterator[tuple[str, str]]:
    """Yield phases and lines, each with its label."""
    if found.phases:
        yield "Phases", phases(found)
    for line in found.lines:
        yield _noun(found).capitalize(), f"{time(line.ns)} {_line(line)}"


def time_lines(found: CpuTime, width: int) -> Iterator[str]:
    """Yield the time of a step by phase and by line, in at most 8 lines."""
    if found.phases:
        text = f"Phases: {phases(found)}"
        yield from wrapped(text, max(width, _LEAST), first="", rest="  ")
    if not found.lines:
        return
    yield f"Longest {_noun(found)}s, as recorded:"
    times = [time(line.ns) for line in found.lines]
    widest = max(map(len, times))
    for text, line in zip(times, found.lines, strict=True):
        shown = f"  {text:>{widest}}  {_line(line)}"
        yield shown if len(shown) <= width else shown[: max(width, _LEAST) - 1] + "…"


def _noun(found: CpuTime) -> str:
    """Return what the rows are: without stacks, no line is known."""
    return "line" if any(line.place.source for line in found.lines) else "operator"


def _line(line: CpuLine) -> str:
    place = where(line.place) or printable(line.name or "")
    return f"{place} ({', '.join(line.phases)})" if line.phases else place


def cpu_data(found: CpuTime) -> dict[str, Any]:
    """Return the time of a step as plain data."""
    return {
        "phases": [{"phase": phase, "ns": round(ns)} for phase, ns in found.phases],
        "lines": [
            to_builtins(line) | {"ns": round(line.ns)}  # a place has plain fields
            for line in found.lines
        ],
    }
