"""Messages about the tracks that were added to a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.common.safe_text import printable
from traceq.common.units import size
from traceq.common.words import counted
from traceq.report.lint.content import verdict

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.annotate.job import JobWritten
    from traceq.annotate.trace import Annotated
    from traceq.model.lint_report import RecordingReport


def sentences(written: Annotated, outcome: RecordingReport, file: Path) -> str:
    """Return a message on what was written, and what was left out."""
    added, name = written.added, printable(str(file))
    on = f", on {counted(added.slices, 'slice')}" if added.slices else ""
    lines = [
        f"{verdict(outcome)}",
        f"{name}: {size(written.bytes_after)}, the trace has"
        f" {size(written.bytes_before)}; its process traceq has"
        f" {counted(added.tracks, 'track')}{on}",
    ]
    if written.steps:
        lines.append(_cut(written))
    if added.joined or added.left_out:
        lines.append(_coarser(added.joined, added.left_out))
    if written.copied.lost:
        events = counted(written.copied.lost, "event")
        are = "is" if written.copied.lost == 1 else "are"
        lines.append(f"{events} of the trace that {are} not valid JSON {are} left out")
    if written.copied.header_lost:
        lines.append("what the trace says about itself is not valid JSON: left out")
    return "\n".join(lines) + "\n"


def of_job(
    written: JobWritten, outcome: RecordingReport, file: Path, bytes_after: int
) -> str:
    """Return a message on what was written of a job, and what was left out."""
    lines = [
        verdict(outcome),
        f"{printable(str(file))}: {size(bytes_after)};"
        f" {counted(written.ranks, 'rank')} on one clock, each with"
        " its steps, collectives (wait and transfer) and kernels:"
        f" {counted(written.collectives, 'collective')} and"
        f" {counted(written.kernels, 'kernel')}",
    ]
    if written.left_out:
        left = counted(written.left_out, "kernel")
        lines.append(f"to stay small, the {left} that are shortest are left out")
    if written.unread:
        lines.append(f"{counted(written.unread, 'rank')} without kernels")
    return "\n".join(lines) + "\n"


def how_to_look(file: Path) -> str:
    """Return a sentence on how to open a file."""
    return (
        f"traceq open --as-is {printable(str(file))} shows it in Perfetto, or drop it"
        " on https://ui.perfetto.dev: it stays on this machine\n"
    )


def _cut(written: Annotated) -> str:
    first, last = written.steps[0], written.steps[-1]
    which = f"steps {first} to {last}" if first != last else f"step {first}"
    events = counted(written.copied.events or 0, "event")
    return f"only {which}: {events} of the trace's own"


def _coarser(joined: int, left_out: int) -> str:
    parts = []
    if joined:
        parts.append(f"{joined:,} share a slice with others next to them")
    if left_out:
        parts.append(f"{left_out:,} have none, as those in later steps")
    return (
        "to stay small, of the kernels, gaps and host calls of findings "
        + " and ".join(parts)
    )
